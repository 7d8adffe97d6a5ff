"""With `--rerun-failed`, tests that failed run once more, alone, after all others.

A test that passes then is unstable: it is listed last, with the reason of its first failure and the load of the
machine, and does not fail the run. A test that fails twice does. More than `MOST_RERUN` failures are not noise:
then none runs again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

#: More failures than this are a fault of the change.
MOST_RERUN = 60
_OPTION = "--rerun-failed"
_REPORT = "PREFLIGHT_SECOND_TRY"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(_OPTION, action="store_true", help="run failed tests once more, alone; list those that pass then")


def pytest_configure(config: pytest.Config) -> None:
    """Watch failures in the process that prints them."""
    if config.getoption(_OPTION) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rerun(config), "rerun-failed")
    if target := os.environ.pop(_REPORT, ""):
        config.pluginmanager.register(SecondTry(Path(target)), "second-try")


@dataclass(eq=False)
class SecondTry:
    """Writes the names of the tests that passed to a file, for the run that started this one."""

    target: Path
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of each phase."""
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self.target.write_text(json.dumps(sorted(self.passed - self.failed)))


@dataclass(eq=False)
class Rerun:
    """The failures of a run, and which of them a second run confirms."""

    config: pytest.Config
    failed: dict[str, pytest.TestReport] = field(default_factory=dict)
    unstable: list[str] = field(default_factory=list)
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first failure of a test."""
        if report.failed:
            self.failed.setdefault(report.nodeid, report)

    # After pytest-xdist has ended its workers, whose tests would run beside the second try.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Run failed tests once more; the run passes if all of them do."""
        self.load = os.getloadavg()
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self.failed) <= MOST_RERUN:
            return
        # Tests that never ran, at the session's deadline for one, pass no run.
        if session.shouldstop or session.shouldfail:
            return
        passed = self._run_again()
        self.unstable = [name for name in self.failed if name in passed]
        stats = self.config.pluginmanager.get_plugin("terminalreporter").stats
        wrong = False
        for kind in ("failed", "error"):
            reports = stats.pop(kind, [])
            # A module that cannot be imported is in these lists too, and has no test that could pass.
            if kept := [report for report in reports if report.nodeid not in self.unstable]:
                stats[kind] = kept
                wrong = True
        if self.unstable:
            stats["unstable"] = [self.failed[name] for name in self.unstable]
        if not wrong:
            session.exitstatus = pytest.ExitCode.OK

    def _run_again(self) -> set[str]:
        """The names of the tests that pass when they run once more."""
        written = Path(self.config._tmp_path_factory.mktemp("again")) / "passed.json"  # type: ignore[attr-defined]
        thorough = ["--thorough"] if self.config.getoption("--thorough", default=False) else []
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", *thorough]
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        print(f"\n{len(self.failed)} failed; each runs once more, alone", flush=True)
        done = subprocess.run(
            [*command, *self.failed], cwd=self.config.rootpath, env=own | {_REPORT: str(written)}, check=False
        )
        # The process may crash after the tests, as it exits: what they did counts.
        if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            print(f"the second run ended with exit code {done.returncode}", flush=True)
        return set(json.loads(written.read_text())) if written.is_file() else set()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List unstable tests."""
        if not self.unstable:
            return
        load = ", ".join(f"{value:.1f}" for value in self.load)
        terminalreporter.section(f"{len(self.unstable)} unstable: failed once, passed alone; load {load}", yellow=True)
        for name in self.unstable:
            text = self.failed[name].longreprtext
            reason = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-5:]
            terminalreporter.write_line(name)
            for line in reason[:10]:
                terminalreporter.write_line(f"  {line}")

    def pytest_unconfigure(self) -> None:
        """Close the run with a count."""
        stats = self.config.pluginmanager.get_plugin("terminalreporter").stats
        failed = len(stats.get("failed", [])) + len(stats.get("error", []))
        print(f"{len(stats.get('passed', []))} passed, {failed} failed, {len(self.unstable)} unstable", flush=True)
