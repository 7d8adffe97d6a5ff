"""How a rank says where it is: events from the main thread, heartbeats from another one.

The two are kept apart on purpose. A heartbeat tells that the process lives; the progress counter, which only the
main thread moves, tells that the training does. A rank whose heart beats while its progress stands is stuck.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from reference_trainer import phases

Emit = Callable[[Dict[str, Any]], Any]

#: Short steps are told at most so often one by one; heartbeats tell where the counter stands in between.
BRIEF_S = 0.1


class Progress:
    """The rank's own account of itself.

    Args:
        emit: sends one event to the head; called from two threads, so it is called under a lock.
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
        #: A heartbeat must not see a step that is half entered.
        self._state = threading.Lock()
        self._began = time.monotonic()
        self._counter = 0
        self._what = ""
        self._waiting_for: List[int] = []
        self._loading = False
        self._inside = False
        self._idle = False
        self._told = False
        self._told_at = 0.0
        self._since = self._began
        self._quit = threading.Event()
        #: Called before each collective with its number: a drill may have something in mind.
        self.before_collective: Callable[[int], None] = _nothing
        self._heart: Optional[threading.Thread] = None

    @property
    def began_s(self) -> float:
        """When this rank began, by `time.monotonic`."""
        return self._began

    def start(self) -> None:
        """Let the heart beat."""
        self._heart = threading.Thread(target=self._beat, name="preflight-heart", daemon=True)
        self._heart.start()

    def stop(self) -> None:
        """No more heartbeats after this returns."""
        self._quit.set()
        if self._heart is not None:
            self._heart.join(2.0)

    def say(self, event: str, **data: Any) -> None:
        """Send one event."""
        data["event"] = event
        with self._lock:
            self._emit(data)

    def drilled(self, **what: Any) -> None:
        """A fault that was asked for is played now."""
        self.say(phases.DRILL, phase=self.phase, **what)

    def reached(self, phase: str, **details: Any) -> None:
        """A phase is behind this rank."""
        self.phase = phase
        self.phase_at_s[phase] = time.monotonic() - self._began
        self._moved()
        self.say(phases.PHASE, phase=phase, progress=self._counter, details=details)

    def entering(
        self,
        what: str,
        *,
        waiting_for: Sequence[int] = (),
        collective: bool = False,
        loading: bool = False,
        brief: bool = False,
        idle: bool = False,
        details: Optional[Dict[str, Any]] = None,
    ) -> int:
        """About to do something that may block.

        Args:
            waiting_for: ranks without which it cannot go on; empty when it depends on nobody else.
            collective: it takes every rank; it gets the next number, the same on all ranks.
            loading: heartbeats may pause meanwhile, because libraries are loaded under the interpreter's lock.
            brief: one of many that are mostly short, such as a step: told only every `BRIEF_S`.
            idle: there is nothing to do until one of `waiting_for` asks for something.

        Returns the number of the collective (of the last one when this is none).
        """
        if collective:
            self.before_collective(self.collective + 1)
        with self._state:
            self._moved()
            if collective:
                self.collective += 1
            self._what, self._waiting_for, self._loading = what, list(waiting_for), loading
            self._inside, self._idle = collective, idle
        self._told = not brief or self._since - self._told_at >= BRIEF_S
        if not self._told:
            return self.collective
        self._told_at = self._since
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
        if details:
            data["details"] = details
        self.say(phases.ENTERING, **data)
        return self.collective

    def waits_for(self, ranks: Sequence[int], *, idle: bool = False) -> None:
        """The same goes on, but it waits for these ranks only; `idle` as in `entering`."""
        if list(ranks) != self._waiting_for or idle != self._idle:
            with self._state:
                self._waiting_for, self._idle = list(ranks), idle
            self.say(phases.ENTERING, what=self._what, phase=self.phase, waiting_for=list(ranks), idle=idle, again=True)

    def still(self) -> None:
        """The main thread is still at what it entered, and gets on with it; the next heartbeat says so."""
        with self._state:
            self._moved()

    def left(self, *, collective: bool = False) -> None:
        """What was entered last is over."""
        seconds = time.monotonic() - self._since
        with self._state:
            what, self._what, self._waiting_for, self._loading = self._what, "", [], False
            self._inside = self._idle = False
            self._moved()
        if not self._told:
            return
        data: Dict[str, Any] = {
            "what": what,
            "phase": self.phase,
            "progress": self._counter,
            "seconds": seconds,
        }
        if collective:
            data["collective"] = self.collective
        self.say(phases.LEFT, **data)

    def _moved(self) -> None:
        self._counter += 1
        self._since = time.monotonic()

    def _beat(self) -> None:
        beat = 0
        while not self._quit.wait(phases.HEARTBEAT_S):
            beat += 1
            with self._state:
                now = {
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
            self.say(phases.BEAT, beat=beat, **now)


def _nothing(collective: int) -> None:
    """No drill."""
