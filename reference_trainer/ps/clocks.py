"""The progress of every worker, and the waits of its reads in the modes sync, async, bounded staleness and geo.

A worker's clock counts its complete pushes. In sync mode a read at clock c waits until all workers' push c-1 is
applied; with a staleness bound s until the slowest worker is at c-s; otherwise no read waits. The actual staleness of a
read is measured, not derived.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Sequence

SYNC, ASYNC, SSP, GEO = "sync", "async", "ssp", "geo"
MODES = (SYNC, ASYNC, SSP, GEO)
#: How often a waiting worker is notified.
_TICK_S = 1.0


class RunEnded(Exception):
    """The reason why the run and all waits end. `cause` is the worker that caused it, if any."""

    def __init__(self, text: str, *, worker: int | None = None, mismatch: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.worker = worker
        self.mismatch = mismatch


class Clocks:
    """The progress of all workers at one server; `bound` is the lead allowed by `ssp`."""

    def __init__(self, workers: int, mode: str, *, bound: int = 0, apply_round: Callable[[], None]) -> None:
        self.workers = workers
        self.mode = mode
        self.phase = 0
        self.clock = [0] * workers
        #: The number of parts of the next push that have arrived.
        self.parts = [0] * workers
        self.applied = 0
        self.updates = 0
        self.violations: list[str] = []
        self.staleness: dict[int, int] = {}
        self.overtaken: dict[int, int] = {}
        self.longest_s = 0.0
        self.changed = threading.Condition()
        self.ended: RunEnded | None = None
        self._bound = bound
        self._apply_round = apply_round
        self._at_barrier: set[int] = set()
        #: The update count at each worker's last read, and of reads during its push.
        self._read_at = [0] * workers
        self._reads_at: dict[int, int] = {}
        self._pushed_s = [0.0] * workers
        self._waiting: dict[int, float] = {}

    def end(self, reason: RunEnded) -> None:
        """End all waits; if that happens repeatedly, the first reason counts."""
        with self.changed:
            if self.ended is None:
                self.ended = reason
            self.changed.notify_all()

    def await_end(self, limit_s: float) -> None:
        """Wait until the run has ended with a reason, for at most `limit_s` seconds."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended is not None, limit_s)

    def note(self, violation: str) -> None:
        """Record a violation of the protocol for the report."""
        with self.changed:
            if len(self.violations) < 100:
                self.violations.append(violation)

    def pushed(self, worker: int, clock: int) -> None:
        """Record that a worker's push is complete. In sync mode, the last push of a round applies the whole round."""
        with self.changed:
            now = time.monotonic()
            if self._pushed_s[worker]:
                self.longest_s = max(self.longest_s, now - self._pushed_s[worker])
            self._pushed_s[worker] = now
            self.clock[worker] = clock + 1
            self.parts[worker] = 0
            between = self.updates - self._read_at[worker]
            self.overtaken[between] = self.overtaken.get(between, 0) + 1
            self.updates += 1
            if worker in self._reads_at:
                self._read_at[worker] = self._reads_at.pop(worker)
            if self.mode == SYNC and min(self.clock) > self.applied:
                self._apply_round()
                self.applied += 1
            if self._waiting:
                self.changed.notify_all()

    def await_read(self, worker: int, clock: int, on_wait: Callable[[Sequence[int]], None]) -> float:
        """Wait until a worker at `clock` may read; return the seconds. `on_wait` gets the awaited workers."""
        if self.mode in (ASYNC, GEO):
            self.reads(worker, clock)
            return 0.0
        need = clock if self.mode == SYNC else clock - self._bound
        return self._await(worker, lambda: self._laggards(need), on_wait, lambda: self._measure(worker, clock))

    def reads(self, worker: int, clock: int) -> None:
        """Record that a worker at `clock` reads the current values; the push before `clock` may still be arriving."""
        with self.changed:
            self._measure(worker, clock)

    def await_room(self, worker: int, clock: int, on_wait: Callable[[Sequence[int]], None]) -> float:
        """Wait until the push before `clock` was applied, so that its memory may be overwritten (mode `sync`)."""
        if self.mode != SYNC or clock <= self.applied:
            return 0.0
        return self._await(worker, lambda: self._laggards(clock), on_wait, lambda: None)

    def barrier(
        self, worker: int, phase: int, on_wait: Callable[[Sequence[int]], None], advance: Callable[[int], None]
    ) -> float:
        """Wait until all workers have arrived in this phase; the last one calls `advance(next phase)` for all."""
        with self.changed:
            if phase == self.phase:
                self._at_barrier.add(worker)
                if len(self._at_barrier) == self.workers:
                    self._at_barrier = set()
                    advance(phase + 1)
                    self.phase = phase + 1
                    self.changed.notify_all()

        def missing() -> list[int]:
            return [] if self.phase > phase else [w for w in range(self.workers) if w not in self._at_barrier]

        return self._await(worker, missing, on_wait, lambda: None)

    def begin_phase(self) -> None:
        """Set all clocks to zero; called within `advance`."""
        self.clock = [0] * self.workers
        self.parts = [0] * self.workers
        self.applied = 0
        self._pushed_s = [0.0] * self.workers

    def held(self) -> list[int]:
        """Return the workers that wait for other workers."""
        with self.changed:
            return list(self._waiting)

    def delaying_workers(self, min_s: float) -> list[int]:
        """Return the workers that have made others wait for longer than `min_s`."""
        with self.changed:
            now = time.monotonic()
            waiting = [worker for worker, since in self._waiting.items() if now - since >= min_s]
            if not waiting:
                return []
            if self._at_barrier:
                return [w for w in range(self.workers) if w not in self._at_barrier]
            slowest = min(self.clock)
            return [w for w in range(self.workers) if self.clock[w] == slowest and w not in waiting]

    def _laggards(self, need: int) -> list[int]:
        if self.mode == SYNC:
            return [w for w in range(self.workers) if self.clock[w] < need] if self.applied < need else []
        return [w for w in range(self.workers) if self.clock[w] < need]

    def _measure(self, worker: int, clock: int) -> None:
        slowest = min(self.clock)
        if clock > self.clock[worker]:
            slowest = min([clock] + [at for other, at in enumerate(self.clock) if other != worker])
            self._reads_at[worker] = self.updates + 1
        else:
            self._read_at[worker] = self.updates
        ahead = max(0, clock - slowest)
        self.staleness[ahead] = self.staleness.get(ahead, 0) + 1

    def _await(
        self,
        worker: int,
        missing: Callable[[], list[int]],
        on_wait: Callable[[Sequence[int]], None],
        then: Callable[[], None],
    ) -> float:
        started_at = notified = time.monotonic()
        try:
            while True:
                with self.changed:
                    if self.ended is not None:
                        raise self.ended
                    lacking = missing()
                    if not lacking:
                        then()
                        return time.monotonic() - started_at
                    self._waiting.setdefault(worker, started_at)
                    self.changed.wait(_TICK_S)
                now = time.monotonic()
                if now - notified >= _TICK_S:
                    notified = now
                    on_wait(lacking)
        finally:
            self._waiting.pop(worker, None)
