"""Writes events during a run to a file, standard output or a file descriptor, and flushes each line.

A thread does the writing so that a slow reader cannot delay the run: agents on nodes exit if the head is silent for a
few seconds. If the reader closes the stream or the disk is full, the stream ends and the run continues.
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
from preflight._util.json_output import to_bytes
from preflight._util.redaction import scrub_traceback
from preflight._util.usage_error import UsageError
from preflight.engine.report import ExitCode, Report
from preflight.model.progress import Step
from preflight.reporters.events import Event, EventBuilder, StageEvent
from preflight.reporters.output import is_stream, neutralize, refuse_outside_link

#: The target that means standard output.
STDOUT = "-"
#: With more unwritten lines than this, progress inside a stage is dropped.
_MAX_UNWRITTEN = 5000
#: How long to wait at the end until the reader has read the remaining lines.
_DRAIN_TIMEOUT_S = 5.0


class EventStream:
    """Writes the events of one run; can be used as a receiver of progress (`preflight.model.progress.Progress`)."""

    def __init__(self, events: EventBuilder, target: str) -> None:
        self._events = events
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last: Event | None = None
        self._writer = threading.Thread(target=_write, args=(_opener(target), self._lines), daemon=True)
        self._writer.start()

    def begin(self, verb: str) -> None:
        """Write the first line."""
        self._enqueue(self._events.began(verb, __version__))

    def __call__(self, step: Step) -> None:
        """Write the events of one step of the run."""
        for event in self._events.of_step(step):
            self._enqueue(event)

    def report(self, report: Report) -> None:
        """Write the findings; the verdict follows once the report has been written."""
        for event in self._events.of_report(report):
            self._enqueue(event)
        self._last = self._events.verdict(report)

    def close(self, error: BaseException | None = None) -> None:
        """Write the verdict and wait a while for the reader. `error` is the exception that ends the command."""
        if error is not None and not (self._last is not None and _is_bug(error)):
            self._last = self._events.without_report(*_ended_by(error))
        if self._last is not None:
            self._enqueue(self._last)
        self._lines.put(None)
        self._writer.join(_DRAIN_TIMEOUT_S)

    def _enqueue(self, event: Event) -> None:
        if isinstance(event, StageEvent) and event.state == "going-on" and self._lines.qsize() > _MAX_UNWRITTEN:
            return
        self._lines.put(neutralize(to_bytes(event, indent=None), "json"))


@contextmanager
def open_event_stream(target: str, verb: str) -> Iterator[EventStream]:
    """Open the event stream of one run; it ends with a verdict, however the run ends.

    Raises:
        UsageError: the target cannot be written.
    """
    stream = EventStream(EventBuilder(), target)
    stream.begin(verb)
    try:
        yield stream
    except BaseException as error:
        stream.close(error)
        raise
    stream.close()


def _is_bug(error: BaseException) -> bool:
    """Return whether the exception is a bug; a bug has its own report."""
    return isinstance(error, Exception) and not isinstance(error, UsageError | click.ClickException | click.Abort)


def _ended_by(error: BaseException) -> tuple[int, str]:
    """Return the exit code that the command will have after this exception, and the reason."""
    if isinstance(error, UsageError | click.ClickException):
        return ExitCode.USAGE, str(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return ExitCode.INTERRUPTED, "interrupted"
    return ExitCode.BUG, scrub_traceback(f"{type(error).__name__}: {error}")


def _opener(target: str) -> BinaryIO | Path:
    """Return a function that opens the target. A named pipe can be opened only once it has a reader."""
    if target == STDOUT:
        sys.stdout.flush()
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    if target.startswith("fd:"):
        return _descriptor(target)
    path = Path(target)
    try:
        refuse_outside_link(path)
        if not is_stream(path):
            # A link of that name may come from the examined tree; a new file replaces it.
            if path.is_symlink():
                path.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.fdopen(os.open(path, flags, 0o666), "wb", buffering=0)
        if stat.S_ISFIFO(path.stat().st_mode):
            return path
        return path.open("wb", buffering=0)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--events {target}: cannot write: {why}") from None


def _descriptor(target: str) -> BinaryIO:
    number = target.removeprefix("fd:")
    if not number.isdecimal():
        raise UsageError(f"--events {target}: expected a number after fd:, as in fd:3")
    try:
        return os.fdopen(os.dup(int(number)), "wb", buffering=0)
    except (OSError, OverflowError):
        raise UsageError(
            f"--events {target}: this descriptor is not open; open it in the shell with {number}>FILE"
        ) from None


def _write(target: BinaryIO | Path, lines: queue.SimpleQueue[bytes | None]) -> None:
    try:
        with target.open("wb", buffering=0) if isinstance(target, Path) else target as stream:
            while (line := lines.get()) is not None:
                left = memoryview(line)
                while left:
                    left = left[stream.write(left) or 0 :]
    except (OSError, ValueError):
        # The reader closed the stream.
        while lines.get() is not None:
            pass
