"""Where events go while a run goes on: a file, standard output or a descriptor, each line flushed at once.

A thread writes them, because a run must not wait for whoever reads: agents on nodes end themselves when nobody speaks
to them for a few seconds. A reader that went away, or a full disk, ends the stream and not the run.
"""

from __future__ import annotations

import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from preflight import __version__
from preflight.document import to_bytes
from preflight.errors import UsageError
from preflight.events import Event, Narrator, StageEvent
from preflight.progress import Step
from preflight.report import ExitCode, Report

#: Standard output, as a target.
STDOUT = "-"
#: With so many lines unwritten, how far a stage is is not said any more.
_MOST_UNWRITTEN = 5000
#: At the end a reader has so long to take what is left.
_LINGERS_S = 5.0


class EventStream:
    """One run's events on their way out; also somebody to tell of steps (`preflight.progress.Progress`)."""

    def __init__(self, narrator: Narrator, target: str) -> None:
        self._narrator = narrator
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last: Event | None = None
        self._writer = threading.Thread(target=_write, args=(_opener(target), self._lines), daemon=True)
        self._writer.start()

    def begin(self, verb: str) -> None:
        """Write the first line."""
        self._put(self._narrator.began(verb, __version__))

    def __call__(self, step: Step) -> None:
        """Tell of one change."""
        for event in self._narrator.of_step(step):
            self._put(event)

    def report(self, report: Report) -> None:
        """Tell what was judged; the verdict itself comes when the report was handed out."""
        for event in self._narrator.of_report(report):
            self._put(event)
        self._last = self._narrator.verdict(report)

    def close(self, error: BaseException | None = None) -> None:
        """Write the verdict, and wait for the reader a while. With `error` the command ends by that."""
        if error is not None and not (self._last is not None and _is_bug(error)):
            self._last = self._narrator.without_report(*_ended_by(error))
        if self._last is not None:
            self._put(self._last)
        self._lines.put(None)
        self._writer.join(_LINGERS_S)

    def _put(self, event: Event) -> None:
        if isinstance(event, StageEvent) and event.state == "going-on" and self._lines.qsize() > _MOST_UNWRITTEN:
            return
        self._lines.put(to_bytes(event, indent=None))


@contextmanager
def told(target: str, verb: str) -> Iterator[EventStream]:
    """The stream of one run, which ends with a verdict however the run ends.

    Raises:
        UsageError: the target cannot be written.
    """
    stream = EventStream(Narrator(), target)
    stream.begin(verb)
    try:
        yield stream
    except BaseException as error:
        stream.close(error)
        raise
    stream.close()


def _is_bug(error: BaseException) -> bool:
    """Such a one has a report, which says so."""
    return isinstance(error, Exception) and not isinstance(error, UsageError | click.ClickException | click.Abort)


def _ended_by(error: BaseException) -> tuple[int, str]:
    """The exit code that the command will have after this, and why."""
    if isinstance(error, UsageError | click.ClickException):
        return ExitCode.USAGE, str(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED, "interrupted"
    return ExitCode.BUG, f"{type(error).__name__}: {error}"


def _opener(target: str) -> BinaryIO | Path:
    """The target open for writing, or a pipe by its name, which can be opened only when there is a reader."""
    if target == STDOUT:
        sys.stdout.flush()
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    if target.startswith("fd:"):
        return _descriptor(target)
    path = Path(target)
    try:
        if path.exists() and stat.S_ISFIFO(path.stat().st_mode):
            return path
        return path.open("wb", buffering=0)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--events {target}: it cannot be written: {why}") from None


def _descriptor(target: str) -> BinaryIO:
    number = target.removeprefix("fd:")
    if not number.isdecimal():
        raise UsageError(f"--events {target}: a number is expected behind fd:, as in fd:3")
    try:
        return os.fdopen(os.dup(int(number)), "wb", buffering=0)
    except (OSError, OverflowError):
        raise UsageError(f"--events {target}: nothing is open there; the shell opens it with {number}>FILE") from None


def _write(target: BinaryIO | Path, lines: queue.SimpleQueue[bytes | None]) -> None:
    try:
        with target.open("wb", buffering=0) if isinstance(target, Path) else target as stream:
            while (line := lines.get()) is not None:
                left = memoryview(line)
                while left:
                    left = left[stream.write(left) or 0 :]
    except (OSError, ValueError):
        # Whoever read is gone.
        while lines.get() is not None:
            pass
