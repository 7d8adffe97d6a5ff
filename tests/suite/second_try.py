"""Tests marked `second_try` make a fault and look for it; one that misses it runs once more, in plain sight.

The machine's own noise can hide a fault or add one. That must be rare: every second try is printed at the end with what
the first one missed. A run with more than `MAX_SECOND_TRIES` of them fails, and so does one in which a row misses for
the second time within its last `RUNS` runs. Runs are remembered in a file outside the tree, so that they add up over
checkouts. Tests of healthy runs never get a second try.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

#: Second tries in one run.
MAX_SECOND_TRIES = 4
#: The runs of a row that count, and the misses among them that are too many.
RUNS, MISSES = 20, 2
#: Names the file that runs are remembered in; without it, it is in the user's cache directory.
FILE = "PREFLIGHT_SECOND_TRIES"
_MARK = "second_try"
_MISSED = "missed at first"
_TITLE = "tried a second time"
_HIT, _MISS = ".", "x"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "second_try: makes a fault and looks for it; runs once more if that is missed")


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run such a test, and repeat it if its call failed."""
    if item.get_closest_marker(_MARK) is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    missed = [report for report in reports if report.when == "call" and report.failed]
    if missed and not item.session.shouldstop:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in reports:
            report.user_properties.append((_MISSED, missed[0].longreprtext))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class History:
    """The result of the first try of each row in its last runs, oldest first: `.` for a hit, `x` for a miss."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_this_machine(cls) -> History:
        """The history in the file that `FILE` names, or in the user's cache directory."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(Path(os.environ.get(FILE) or cache / "preflight-tests" / "second-tries.json"))

    def add(self, first_tries: dict[str, bool]) -> dict[str, str]:
        """Add a run, where True is a hit; returns the rows that missed now and too often before.

        Runs at the same time wait for each other. A file that cannot be read counts as empty.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                runs = {str(row): str(marks) for row, marks in json.load(file).items()}
            except (ValueError, AttributeError):
                runs = {}
            for row, hit in first_tries.items():
                runs[row] = (runs.get(row, "") + (_HIT if hit else _MISS))[-RUNS:]
            file.truncate(0)
            json.dump(runs, file, indent=1, sort_keys=True)
        missed = [row for row, hit in first_tries.items() if not hit]
        return {row: runs[row] for row in sorted(missed) if runs[row].count(_MISS) >= MISSES}


class SecondTries:
    """Collects second tries where all reports arrive, remembers them, and prints them."""

    def __init__(self, history: History | None = None) -> None:
        self.missed: dict[str, str] = {}
        self.too_often: dict[str, str] = {}
        self._ran: set[str] = set()
        self._history = history or History.of_this_machine()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the result of a first try."""
        if report.when == "call" and _MARK in report.keywords and not report.skipped:
            self._ran.add(report.nodeid)
        for name, text in report.user_properties:
            if name == _MISSED:
                self.missed[report.nodeid] = str(text)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run if noise of the machine cannot explain what was missed."""
        if self._ran:
            self.too_often = self._history.add({row: row not in self.missed for row in self._ran})
        if (len(self.missed) > MAX_SECOND_TRIES or self.too_often) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print each one with the lines that explain why the first try missed."""
        if not self.missed:
            return
        terminalreporter.section(f"{len(self.missed)} {_TITLE}", yellow=True)
        for nodeid, text in sorted(self.missed.items()):
            terminalreporter.write_line(f"{nodeid}: the first try missed:")
            lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-20:]
            for line in lines[:60]:
                terminalreporter.write_line(f"  {line}")
        if len(self.missed) > MAX_SECOND_TRIES:
            terminalreporter.write_line(
                f"{len(self.missed)} second tries, at most {MAX_SECOND_TRIES} are noise", red=True
            )
        for nodeid, marks in self.too_often.items():
            terminalreporter.write_line(
                f"{nodeid}: missed {marks.count(_MISS)} times in its last {len(marks)} runs ({marks}), "
                f"at most {MISSES - 1} in {RUNS} is noise",
                red=True,
            )
