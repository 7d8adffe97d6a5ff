"""`--cpu-report` prints the CPU time of each test file, including all processes that it starts.

Wall time says little on a machine that other work shares; CPU time barely changes with the load. It is read from
a control group that each worker makes for itself, because the kernel adds a process to its parent only if the parent
waits for it, and nobody waits for what sshd starts on a virtual node. Without such control groups only processes that
were waited for are counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_SHOWN = 30
_OUTPUT = "cpu_report"
_CPUACCT = Path("/sys/fs/cgroup/cpuacct")


@dataclass
class Cost:
    """Seconds of processor and wall time, and the number of tests they were spent on."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    tests: int = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("CPU time")
    group.addoption(
        "--cpu-report",
        nargs="?",
        type=int,
        const=_SHOWN,
        metavar="N",
        help=f"print the N files that cost most CPU time, child processes included (default: {_SHOWN})",
    )
    group.addoption("--cpu-report-json", metavar="FILE", help="with --cpu-report: write the times of every test there")


def pytest_configure(config: pytest.Config) -> None:
    """Measure only if the option is set."""
    if config.getoption("--cpu-report") is not None:
        config.pluginmanager.register(CpuReport(config), "cpu-report")


@dataclass
class Meter:
    """The CPU time of this process and of all that it starts."""

    group: Path | None = None

    def __post_init__(self) -> None:
        group = _CPUACCT / f"preflight-tests-{os.getpid()}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text("0")
            (group / "cpuacct.usage").read_text()
        except OSError:
            return
        self.group = group

    def read(self) -> float:
        """Processor seconds so far."""
        if self.group is not None:
            return int((self.group / "cpuacct.usage").read_text()) / 1e9
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    def close(self) -> None:
        """Leave the control group and remove it; one that a process lives on in stays."""
        if self.group is not None:
            with contextlib.suppress(OSError):
                (_CPUACCT / "cgroup.procs").write_text("0")
                self.group.rmdir()


@dataclass
class CpuReport:
    """Measures each test with its fixtures, and prints the sums of all workers by file."""

    config: pytest.Config
    tests: dict[str, tuple[float, float]] = field(default_factory=dict)
    inside_s: float = 0.0
    outside_s: float = 0.0

    def __post_init__(self) -> None:
        self.meter = Meter()

    # Around the fixtures of the module, which its first test makes and its last one ends.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure one test."""
        cpu_s, wall_s = self.meter.read(), time.monotonic()
        try:
            return (yield)
        finally:
            cpu_s = self.meter.read() - cpu_s
            self.inside_s += cpu_s
            self.tests[item.nodeid] = (cpu_s, time.monotonic() - wall_s)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Send the worker's measurements; the rest is imports, collection and the runner itself."""
        self.outside_s += self.meter.read() - self.inside_s
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[_OUTPUT] = json.dumps({"tests": self.tests, "outside_s": self.outside_s})
            self.meter.close()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """Add the measurements of a worker."""
        measured = json.loads(getattr(node, "workeroutput", {}).get(_OUTPUT, "{}"))
        self.tests.update({name: (cpu_s, wall_s) for name, (cpu_s, wall_s) in measured.get("tests", {}).items()})
        self.outside_s += measured.get("outside_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        self.meter.close()
        if target := self.config.getoption("--cpu-report-json"):
            Path(target).write_text(json.dumps(self.tests, indent=1))
        files: defaultdict[str, Cost] = defaultdict(Cost)
        for name, (cpu_s, wall_s) in self.tests.items():
            cost = files[name.partition("::")[0]]
            cost.cpu_s, cost.wall_s, cost.tests = cost.cpu_s + cpu_s, cost.wall_s + wall_s, cost.tests + 1
        total_s = sum(cost.cpu_s for cost in files.values())
        counted = "with all that they start" if self.meter.group is not None else "with what they wait for"
        terminalreporter.section(f"CPU time of {len(self.tests)} tests {counted}: {total_s:.0f} s")
        terminalreporter.write_line(f"outside of tests (imports, collection, the runner): {self.outside_s:.0f} s")
        terminalreporter.write_line("   cpu s   wall s  tests  file")
        ranked = sorted(files.items(), key=lambda pair: -pair[1].cpu_s)
        for name, cost in ranked[: self.config.getoption("--cpu-report")]:
            terminalreporter.write_line(f"{cost.cpu_s:8.1f} {cost.wall_s:8.1f} {cost.tests:6d}  {name}")
