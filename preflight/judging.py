"""Judging a recording: by which rules and checks, and what becomes of a file that holds none."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from preflight import __version__, catalog
from preflight.engine import SMOKE
from preflight.errors import UsageError
from preflight.near import nearest_path
from preflight.progress import Progress, Step, ignore
from preflight.recording import Recording
from preflight.report import Report, report_on
from preflight.saved import load
from preflight.selecting import broken_for, checks_for, plugins, rules_for


class _Collecting:
    """How often garbage is looked for, while anybody wants it seldom."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: list[int] = []
        self._before = gc.get_threshold()

    def seldom(self, after: int) -> None:
        """From now on after so many allocations at the earliest; 0 is never."""
        with self._lock:
            if not self._wishes:
                self._before = gc.get_threshold()
            self._wishes.append(after)
            self._set()

    def as_before(self, after: int) -> None:
        """One who wanted it so is done."""
        with self._lock:
            self._wishes.remove(after)
            self._set()

    def _set(self) -> None:
        first, *rest = self._before
        never = not first or 0 in self._wishes
        gc.set_threshold(0 if never else max(first, *self._wishes, 0), *rest)


_COLLECTING = _Collecting()


@contextmanager
def collecting_seldom(after: int = 50_000) -> Iterator[None]:
    """Look for garbage after so many allocations, or never: nearly everything that is made stays, or is in no ring.

    While jobs are put together looking costs a fifth. What holds for a process holds for all of its threads.
    """
    _COLLECTING.seldom(after)
    try:
        yield
    finally:
        _COLLECTING.as_before(after)


def judge(recording: Recording | str | Path, *, progress: Progress = ignore) -> Report:
    """The report on a recording, or on the file one was saved to: the same verdict again, with no cluster.

    Raises:
        UsageError: the file cannot be read or is no recording.
    """
    # Of ten thousand nodes, collecting would take three quarters of the time, and find nothing.
    with collecting_seldom(0):
        return _judge(recording, progress)


def _judge(recording: Recording | str | Path, progress: Progress) -> Report:
    """The report alone outlives this: what it was made from is let go of before anybody looks for garbage in it."""
    if not isinstance(recording, Recording):
        progress(Step("recording"))
        recording = _load(Path(recording))
    rules = rules_for(recording.configuration) if recording.verb != SMOKE else ()
    # What could not be planned is told of whether its stage was reached or not.
    stages = None if recording.unplanned else frozenset(stage.name for stage in recording.stages)
    checks = checks_for(recording.configuration, stages) if recording.verb != "lint" else ()
    if recording.verb == SMOKE:
        # Of such a run the files were read, and nodes asked, only as far as the run itself needs it.
        checks = tuple(check for check in checks if check.when == "smoke")
    exhibitors, unshown = catalog.exhibitors(stages) if recording.verb != "lint" else ((), ())
    return report_on(
        recording,
        rules,
        checks,
        plugins=plugins(),
        broken=broken_for(recording.verb, stages),
        progress=progress,
        exhibitors=exhibitors,
        unshown=unshown,
    )


def _load(path: Path) -> Recording:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}{nearest_path(path)}") from None
    try:
        return load(data, to_judge=True)
    except ValueError as error:
        if b'"exit_code"' in data and b'"coverage"' in data:
            raise UsageError(
                f"{path} is no recording but a report; `preflight check --save recording.json` writes recordings"
            ) from None
        if data.lstrip()[:1] not in (b"{", b"\x1f"):
            hint = "`preflight check --save FILE` writes one"
            raise UsageError(f"{path} is no recording, which is JSON: {error}; {hint}") from None
        raise UsageError(f"{path} is no recording that preflight {__version__} can read: {error}") from None
