"""Tests marked `second_try` make a fault and look for it; one that misses it is run once more, in plain sight.

The machine's own noise can hide a fault or add one. That must be rare: every second try is printed at the end with what
the first one missed, and a run with more than `MOST` of them fails. Tests that nothing is said of what is healthy never
get one.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

MOST = 4
_MISSED = "missed at first"
_TITLE = "tried a second time"


def pytest_configure(config: pytest.Config) -> None:
    """Say what the mark means."""
    config.addinivalue_line("markers", "second_try: makes a fault and looks for it; run once more if that is missed")


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run such a test, and once more if its call failed."""
    if item.get_closest_marker("second_try") is None:
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


class SecondTries:
    """Collects them where all reports arrive, and says so."""

    def __init__(self) -> None:
        self.missed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what this report says of a first try."""
        for name, text in report.user_properties:
            if name == _MISSED:
                self.missed[report.nodeid] = str(text)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """So many are not the machine's noise."""
        if len(self.missed) > MOST and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print each with the lines that say why the first try missed."""
        if not self.missed:
            return
        terminalreporter.section(f"{len(self.missed)} {_TITLE}", yellow=True)
        for nodeid, text in sorted(self.missed.items()):
            terminalreporter.write_line(f"{nodeid}: the first try missed:")
            said = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-20:]
            for line in said[:60]:
                terminalreporter.write_line(f"  {line}")
        if len(self.missed) > MOST:
            terminalreporter.write_line(
                f"{len(self.missed)} are more than {MOST}: noise does not explain that", red=True
            )
