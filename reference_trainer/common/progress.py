"""A rank's progress reports: events from the main thread, and heartbeats from another thread.

The two are separate on purpose. A heartbeat shows that the process is alive; the progress counter, which only the main
thread advances, shows that training makes progress. A rank with heartbeats but without progress is stuck.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from preflight.agent import rank_events
from reference_trainer.common.starvation import StarvationClock

Emit = Callable[[Dict[str, Any]], Any]

#: The shortest time between reports of single short steps; heartbeats carry the counter in between.
BRIEF_S = 0.1


class Progress:
    """The rank's own progress.

    Args:
        emit: sends one event to the head; called from two threads under a lock.
        rank: this rank, for messages.
    """

    def __init__(self, emit: Emit, *, rank: int) -> None:
        self.rank = rank
        self.phase = ""
        #: Number of the last collective that was entered.
        self.collective = 0
        self.phase_at_s: Dict[str, float] = {}
        self._emit = emit
        self._lock = threading.Lock()
        #: A heartbeat must not see a half-entered step.
        self._state = threading.Lock()
        self._began = time.monotonic()
        self._counter = 0
        self._what = ""
        self._waiting_for: List[int] = []
        self._loading = False
        self._inside = False
        self._idle = False
        self._root: Optional[int] = None
        self._announced = False
        self._announced_at = 0.0
        self._since = self._began
        self._quit = threading.Event()
        #: Called before each collective with its number, for fault injection.
        self.before_collective: Callable[[int], None] = _no_fault
        self._heart: Optional[threading.Thread] = None

    @property
    def began_s(self) -> float:
        """The start of this rank, by `time.monotonic`."""
        return self._began

    def start(self) -> None:
        """Start the heartbeats."""
        self._heart = threading.Thread(target=self._beat, name="preflight-heart", daemon=True)
        self._heart.start()

    def stop(self) -> None:
        """Stop the heartbeats; none is sent after this returns."""
        self._quit.set()
        if self._heart is not None:
            self._heart.join(2.0)

    def send(self, event: str, **data: Any) -> None:
        """Send one event."""
        data["event"] = event
        with self._lock:
            self._emit(data)

    def on_fault_injected(self, **what: Any) -> None:
        """Report that a requested fault is being injected."""
        self.send(rank_events.FAULT_INJECTED, phase=self.phase, **what)

    def reached(self, phase: str, **details: Any) -> None:
        """Report that a phase is finished."""
        self.phase = phase
        self.phase_at_s[phase] = time.monotonic() - self._began
        self._moved()
        self.send(rank_events.PHASE, phase=phase, progress=self._counter, details=details)

    def entering(
        self,
        what: str,
        *,
        waiting_for: Sequence[int] = (),
        collective: bool = False,
        loading: bool = False,
        brief: bool = False,
        idle: bool = False,
        root: Optional[int] = None,
        details: Optional[Dict[str, Any]] = None,
    ) -> int:
        """Report that a call that may block is about to begin.

        Args:
            waiting_for: ranks without which it cannot continue; empty when it depends on no other rank.
            collective: whether it takes every rank; then it gets the next number, the same on all ranks.
            loading: whether heartbeats may pause meanwhile, because libraries are loaded under the interpreter's lock.
            brief: whether it is one of many mostly short calls, such as steps, which are reported only every `BRIEF_S`.
            idle: whether there is nothing to do until one of `waiting_for` sends a request.
            root: the rank that may leave this collective before the others, since it only sends; `ANY_RANK`: each may.

        Returns the number of the collective (of the last one if this is not a collective).
        """
        if collective:
            self.before_collective(self.collective + 1)
        with self._state:
            self._moved()
            if collective:
                self.collective += 1
            self._what, self._waiting_for, self._loading = what, list(waiting_for), loading
            self._inside, self._idle, self._root = collective, idle, root
        self._announced = not brief or self._since - self._announced_at >= BRIEF_S
        if not self._announced:
            return self.collective
        self._announced_at = self._since
        data: Dict[str, Any] = {
            "what": what,
            "phase": self.phase,
            "waiting_for": list(waiting_for),
            "progress": self._counter,
            "loading": loading,
        }
        if collective:
            data["collective"] = self.collective
        if idle:
            data["idle"] = True
        if root is not None:
            data["root"] = root
        if details:
            data["details"] = details
        self.send(rank_events.ENTERING, **data)
        return self.collective

    def waits_for(self, ranks: Sequence[int], *, idle: bool = False) -> None:
        """Report that the current call continues but waits only for these ranks; `idle` as in `entering`."""
        if list(ranks) != self._waiting_for or idle != self._idle:
            with self._state:
                self._waiting_for, self._idle = list(ranks), idle
            self.send(
                rank_events.ENTERING, what=self._what, phase=self.phase, waiting_for=list(ranks), idle=idle, again=True
            )

    def report_progress(self) -> None:
        """Record that the main thread is making progress in its current call; the next heartbeat reports it."""
        with self._state:
            self._moved()

    def left(self, *, collective: bool = False) -> None:
        """Report that the current call has ended."""
        seconds = time.monotonic() - self._since
        with self._state:
            what, self._what, self._waiting_for, self._loading = self._what, "", [], False
            self._inside = self._idle = False
            self._root = None
            self._moved()
        if not self._announced:
            return
        data: Dict[str, Any] = {"what": what, "phase": self.phase, "progress": self._counter, "seconds": seconds}
        if collective:
            data["collective"] = self.collective
        self.send(rank_events.LEFT, **data)

    def _moved(self) -> None:
        self._counter += 1
        self._since = time.monotonic()

    def _beat(self) -> None:
        beat = 0
        starvation = StarvationClock()
        while not self._quit.wait(rank_events.HEARTBEAT_S):
            beat += 1
            with self._state:
                now: Dict[str, Any] = {
                    "progress": self._counter,
                    "phase": self.phase,
                    "what": self._what,
                    "waiting_for": list(self._waiting_for),
                    "collective": self.collective,
                    "inside": self._inside,
                    "loading": self._loading,
                    "idle": self._idle,
                    "since_s": round(time.monotonic() - self._since, 3),
                }
                if self._root is not None:
                    now["root"] = self._root
            starved_s = starvation.read()
            if starved_s is not None:
                now["starved_s"] = round(starved_s, 3)
            self.send(rank_events.BEAT, beat=beat, **now)


def _no_fault(collective: int) -> None:
    """No fault."""
