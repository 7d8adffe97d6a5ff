"""Keeps agents alive while this process is too busy to send to them: a thread sends heartbeats when the loop does not.

An agent ends everything when its head is silent for three seconds, which is right when the head is dead, stopped or cut
off, and wrong when its event loop is only briefly busy. A head that is busy for longer counts as stuck.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from preflight.agent.wire import BEAT_S, Beat, encode

#: The loop sends a heartbeat every BEAT_S; if it is silent for this long, the thread sends one instead.
_LATE_S = 2 * BEAT_S
#: A loop that has not run for this long is stuck, and its agents had better end.
_STUCK_S = 60.0


class KeepaliveThread:
    """`speak` sends bytes to one agent from any thread, or does nothing if it would have to wait."""

    def __init__(self, *, late_s: float = _LATE_S, stuck_s: float = _STUCK_S) -> None:
        self._late_s = late_s
        self._stuck_s = stuck_s
        self._senders: dict[str, Callable[[bytes], None]] = {}
        self._last_beat_s = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="preflight-keeper", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._last_beat_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; nothing is sent after this returns."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def register(self, key: str, send: Callable[[bytes], None]) -> None:
        """Register another agent."""
        self._senders[key] = send

    def beat(self) -> None:
        """Called by the loop, to show that it is not busy."""
        self._last_beat_s = time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_S):
            silent_s = time.monotonic() - self._last_beat_s
            if not self._late_s < silent_s < self._stuck_s:
                continue
            beat = encode(Beat(time.time()))
            for send in list(self._senders.values()):
                send(beat)
