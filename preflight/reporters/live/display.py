"""Shows the progress of a run: a table that is redrawn on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from preflight._util import terminal
from preflight._util.log import is_on_stderr
from preflight._util.sanitize import clean, neutralize_commands
from preflight.model.progress import Progress, Step, ignore

if TYPE_CHECKING:
    from preflight.reporters.live.run_state import Stage

#: Shortest time between two log lines about a running stage.
LOG_EVERY_S = 5.0
#: Number of notes of one stage that a file gets: each of a thousand silent nodes has one.
_MAX_NOTES = 10
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
    """Yield a receiver of progress that writes to `stream` until the block ends. Only notes and finished stages stay
    visible.

    Args:
        color: whether to use colours, if the command line says so.
        quiet: write nothing.
        after_s: write nothing about a run that ends sooner.
        threads: whether a thread may refresh the display; otherwise each step refreshes it.
    """
    if quiet:
        yield ignore
        return
    make = functools.partial(_watcher, stream, color, clock, threads=threads)
    watcher = _DelayedProgress(make, after_s, clock, threads=threads) if after_s else make()
    try:
        yield watcher
    finally:
        watcher.close()


def _watcher(stream: TextIO, color: bool | None, clock: Clock, *, threads: bool) -> _Watcher:
    if not terminal.can_redraw(stream) or is_on_stderr():
        return _Log(stream, clock)
    # Imported here so that a run without a terminal does not load the library.
    from preflight.reporters.live.table import LiveTable

    return LiveTable(stream, color=terminal.wants_color(stream, color), clock=clock, threads=threads)


class _Log:
    """Progress for a file or a pipe: a line when a stage begins, its first notes, and from time to time what is still
    running.
    """

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        from preflight.reporters.live.run_state import Watch

        self._stream = stream
        self._clock = clock
        self._watch = Watch()
        self._announced: set[str] = set()
        self._notes: Counter[str] = Counter()
        self._logged = clock()

    def __call__(self, step: Step) -> None:
        now = self._clock()
        for over in self._watch.update(step, now):
            if over.skipped:
                self._write(f"{over.title}: {clean(over.end_reason())}")
        self._begin(now)
        if step.note:
            self._note(step)
        stage = self._watch.now
        if stage is not None and now - self._logged >= LOG_EVERY_S:
            self._logged = now
            for line in _running_line(stage, now):
                self._write(f"  {line}")

    def _note(self, step: Step) -> None:
        """Print a note; after some of one stage only that there are more, which the report lists."""
        self._notes[step.stage] += 1
        if self._notes[step.stage] <= _MAX_NOTES:
            self._write(f"  {clean(step.note)}")
        elif self._notes[step.stage] == _MAX_NOTES + 1:
            self._write("  more notes follow; the report has all of them")

    def _begin(self, now: float) -> None:
        stage = self._watch.now
        if stage is not None and stage.name not in self._announced:
            self._announced.add(stage.name)
            self._logged = now
            most = f" (at most {stage.ends_s - now:.0f} s)" if stage.ends_s is not None else ""
            self._write(f"{stage.title}{most}")

    def close(self) -> None:
        """Do nothing; there is nothing to clean up."""

    def _write(self, line: str) -> None:
        try:
            self._stream.write(neutralize_commands(f"preflight: {line}\n"))
            self._stream.flush()
        except (OSError, ValueError):
            # The reader closed the stream; the run continues for the report.
            pass


def _running_line(stage: Stage, now_s: float) -> list[str]:
    """Return the log line about a running stage."""
    if stage.members:
        return stage.by_phase()
    text = ", ".join(filter(None, (stage.progress_text(), stage.time(now_s))))
    awaited = stage.awaited()
    return [f"{text}; waiting for {awaited}" if awaited else text]


class _DelayedProgress:
    """Forwards steps to another receiver only once the run has taken so long that the user needs to see progress."""

    def __init__(self, make: Callable[[], _Watcher], after_s: float, clock: Clock, *, threads: bool) -> None:
        self._make = make
        self._watcher: _Watcher | None = None
        self._clock = clock
        self._from = clock() + after_s
        self._held: list[Step] = []
        self._lock = threading.Lock()
        self._closed = False
        self._timer = threading.Timer(after_s, self._on_timer) if threads else None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __call__(self, step: Step) -> None:
        with self._lock:
            if self._watcher is not None or self._clock() >= self._from:
                self._create_watcher()(step)
            else:
                # The display starts later: it needs the newest step of each stage, every note and every plan.
                self._held = [held for held in self._held if held.stage != step.stage or held.note or held.planned]
                self._held.append(step)

    def _on_timer(self) -> None:
        with self._lock:
            if not self._closed:
                self._create_watcher()

    def _create_watcher(self) -> _Watcher:
        """Create the receiver and pass it the held-back steps. Most runs end sooner and never need one."""
        watcher = self._watcher = self._watcher or self._make()
        held, self._held = self._held, []
        for step in held:
            watcher(step)
        return watcher

    def close(self) -> None:
        """Close the receiver, if it was created."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._watcher is not None:
                self._watcher.close()
