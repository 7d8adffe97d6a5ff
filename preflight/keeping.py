"""Keeps agents alive while this process is too busy to speak to them: a thread that beats when the loop does not.

An agent ends everything when its head is silent for three seconds, which is right when the head is dead, stopped or cut
off, and wrong when its event loop is only busy for once. A head that is busy for longer than that is taken for stuck.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from preflight.node.wire import BEAT_S, Beat, encode

#: The loop beats every BEAT_S; after this much silence of its own the thread beats in its place.
_LATE_S = 2 * BEAT_S
#: A loop that has not come round for so long is stuck, and its agents had better end.
_STUCK_S = 60.0


class Keeper:
    """`speak` sends bytes to one agent from any thread, or does nothing where that cannot be done at once."""

    def __init__(self, *, late_s: float = _LATE_S, stuck_s: float = _STUCK_S) -> None:
        self._late_s = late_s
        self._stuck_s = stuck_s
        self._speakers: dict[str, Callable[[bytes], None]] = {}
        self._came_round_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="preflight-keeper", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._came_round_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; nothing is sent after this returns."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def keep(self, key: str, speak: Callable[[bytes], None]) -> None:
        """Speak to one agent more."""
        self._speakers[key] = speak

    def come_round(self) -> None:
        """Called by the loop, to say that it is not busy."""
        self._came_round_s = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(BEAT_S):
            silent_s = time.monotonic() - self._came_round_s
            if not self._late_s < silent_s < self._stuck_s:
                continue
            beat = encode(Beat(time.time()))
            for speak in list(self._speakers.values()):
                speak(beat)
