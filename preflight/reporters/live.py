"""Showing how a run goes while it goes: on a terminal a small table that changes, elsewhere a calm line a stage."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from preflight import terminal
from preflight.progress import Progress, Step, ignore
from preflight.reporters.clean import clean

if TYPE_CHECKING:
    from preflight.reporters.watch import Stage

#: A log hears of what is still going on at most this often.
LOGGED_S = 5.0
Clock = Callable[[], float]


class _Watcher(Protocol):
    def __call__(self, step: Step) -> None: ...

    def close(self) -> None: ...


@contextmanager
def live_progress(
    stream: TextIO,
    *,
    color: bool | None = None,
    quiet: bool = False,
    after_s: float = 0.0,
    threads: bool = True,
    clock: Clock = time.monotonic,
) -> Iterator[Progress]:
    """A watcher that writes to `stream` until the block ends: notes and finished stages stay, nothing else does.

    Args:
        color: whether to colour, where the command line says so.
        quiet: say nothing at all.
        after_s: say nothing of a run that is over before.
        threads: whether what is shown may be kept up to date by a thread; else it is when there is a step.
    """
    if quiet:
        yield ignore
        return
    make = functools.partial(_watcher, stream, color, clock, threads=threads)
    watcher = _Patient(make, after_s, clock, threads=threads) if after_s else make()
    try:
        yield watcher
    finally:
        watcher.close()


def _watcher(stream: TextIO, color: bool | None, clock: Clock, *, threads: bool) -> _Watcher:
    if not terminal.can_redraw(stream):
        return _Log(stream, clock)
    # Here, so that nobody waits for a terminal library who does without it.
    from preflight.reporters.live_table import LiveTable

    return LiveTable(stream, color=terminal.wants_color(stream, color), clock=clock, threads=threads)


class _Log:
    """For a file or a pipe: a line when a stage begins, every note, and now and then what is still going on."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        from preflight.reporters.watch import Watch

        self._stream = stream
        self._clock = clock
        self._watch = Watch()
        self._told: set[str] = set()
        self._logged = clock()

    def __call__(self, step: Step) -> None:
        now = self._clock()
        for over in self._watch.take(step, now):
            if over.skipped:
                self._write(f"{over.title}: {clean(over.why_over())}")
        self._begin(now)
        if step.note:
            self._write(f"  {clean(step.note)}")
        stage = self._watch.now
        if stage is not None and now - self._logged >= LOGGED_S:
            self._logged = now
            for line in _still(stage, now):
                self._write(f"  {line}")

    def _begin(self, now: float) -> None:
        stage = self._watch.now
        if stage is not None and stage.name not in self._told:
            self._told.add(stage.name)
            self._logged = now
            most = f" (at most {stage.ends_s - now:.0f} s)" if stage.ends_s is not None else ""
            self._write(f"{stage.title}{most}")

    def close(self) -> None:
        """Nothing is left to tidy."""

    def _write(self, line: str) -> None:
        try:
            self._stream.write(f"preflight: {line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            # Whoever watched is gone; the run goes on for whoever reads the report.
            pass


def _still(stage: Stage, now_s: float) -> list[str]:
    """What a log says of a stage that goes on."""
    if stage.members:
        return stage.by_phase()
    said = ", ".join(filter(None, (stage.how_far(), stage.time(now_s))))
    awaited = stage.awaited()
    return [f"{said}; waiting for {awaited}" if awaited else said]


class _Patient:
    """Tells the watcher behind it nothing until somebody would begin to wonder."""

    def __init__(self, make: Callable[[], _Watcher], after_s: float, clock: Clock, *, threads: bool) -> None:
        self._make = make
        self._watcher: _Watcher | None = None
        self._clock = clock
        self._from = clock() + after_s
        self._held: list[Step] = []
        self._lock = threading.Lock()
        self._closed = False
        self._timer = threading.Timer(after_s, self._wake) if threads else None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __call__(self, step: Step) -> None:
        with self._lock:
            if self._watcher is not None or self._clock() >= self._from:
                self._let_go()(step)
            else:
                # What is told later is how it stands then, and what was worth a line of its own.
                self._held = [held for held in self._held if held.stage != step.stage or held.note or held.planned]
                self._held.append(step)

    def _wake(self) -> None:
        with self._lock:
            if not self._closed:
                self._let_go()

    def _let_go(self) -> _Watcher:
        """Whoever tells, told of what was held back. It is made only now: most runs are over sooner."""
        watcher = self._watcher = self._watcher or self._make()
        held, self._held = self._held, []
        for step in held:
            watcher(step)
        return watcher

    def close(self) -> None:
        """End it, whether anything was shown or not."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._watcher is not None:
                self._watcher.close()
