"""False alarms: healthy smoke runs on a machine with four busy processes per processor.

`python -m benchmarks healthy [MODES] [ROUNDS]`, such as `healthy async,ssp 50`; without arguments one round of all
modes. Each run is the command that a user would type, over virtual nodes of this machine. A no-go is a false alarm, and
its findings are printed. An incomplete run (the machine was too busy to decide) is counted separately, with its
reasons. The exit code is 1 if there was a false alarm.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from preflight.agent.process import die_with_parent

ROOT = Path(__file__).resolve().parents[1]
#: The number of processes per processor that only compute.
TIMES = 4
#: A run that takes longer is ended, and counts as incomplete.
LIMIT_S = 300.0
SERVERS = ("--servers", "1", "--workers", "2")
MODES: dict[str, tuple[str, ...]] = {
    "collective": ("--hosts", "a,b,c"),
    "sync": ("--hosts", "a,b,c", *SERVERS, "--mode", "sync"),
    "async": ("--hosts", "a,b,c", *SERVERS, "--mode", "async"),
    "ssp": ("--hosts", "a,b,c", *SERVERS, "--mode", "ssp"),
    "geo": ("--hosts", "a,b,c", *SERVERS, "--mode", "geo"),
    "backup": ("--hosts", "a,b,c,d", *SERVERS, "--mode", "async", "--backup"),
}


@dataclass
class Counted:
    """The results of the runs of one mode."""

    verdicts: Counter[str] = field(default_factory=Counter)
    wall_s: list[float] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)

    @property
    def alarms(self) -> int:
        """The number of healthy runs with the verdict no-go."""
        return sum(times for verdict, times in self.verdicts.items() if verdict not in ("go", "incomplete"))


def main() -> int:
    """Run all modes in turns, and print a line for each."""
    modes, rounds = requested_runs(sys.argv[1:])
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        print(f"unknown mode {unknown[0]!r}; use one of {', '.join(MODES)}", file=sys.stderr)
        return 2
    found = {mode: Counted() for mode in modes}
    with start_burners(TIMES * len(os.sched_getaffinity(0))):
        for number in range(rounds):
            for mode, counted in found.items():
                make_run(mode, counted)
                print(
                    f"  round {number + 1} of {rounds}, {mode}: {dict(counted.verdicts)}", file=sys.stderr, flush=True
                )
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    show(found, load)
    return 1 if any(counted.alarms for counted in found.values()) else 0


def requested_runs(words: Sequence[str]) -> tuple[list[str], int]:
    """Parse the modes and the number of rounds."""
    modes = [mode for word in words if not word.isdecimal() for mode in word.split(",") if mode]
    return modes or list(MODES), next((int(word) for word in words if word.isdecimal()), 1)


@contextmanager
def start_burners(count: int) -> Iterator[None]:
    """Start `count` processes that only compute, with normal priority."""
    pids = []
    try:
        for _ in range(count):
            pid = os.fork()
            if not pid:
                burn()
            pids.append(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def burn() -> None:
    """Compute until killed, or until the parent process ends."""
    try:
        die_with_parent()
        number = 1
        while True:
            number = (number * 1103515245 + 12345) % 2147483648
    finally:
        os._exit(1)


def make_run(mode: str, counted: Counted) -> None:
    """Make one run and count its verdict."""
    command = [sys.executable, "-m", "preflight", "smoke", "--on", "local", "--python", sys.executable, *MODES[mode]]
    folders = (ROOT, ROOT / "checks", ROOT / "rules")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, "-o", "json"], capture_output=True, env=environment, timeout=LIMIT_S, check=False, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        counted.verdicts["incomplete"] += 1
        counted.said[f"not finished after {LIMIT_S:g} s"] += 1
        return
    counted.wall_s.append(time.perf_counter() - began)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        counted.verdicts["no report"] += 1
        counted.said[done.stderr.decode("utf-8", "replace")[-300:]] += 1
        return
    counted.verdicts[str(report["verdict"])] += 1
    for finding in report["findings"]:
        counted.said[f"{finding['severity']}[{finding['id']}] {finding['message']}"] += 1
    for untold in report["outcomes"]:
        if untold["status"] == "unknown" and untold.get("required"):
            counted.said[f"unknown[{untold['id']}] {untold.get('reason', '')}"] += 1


def show(found: dict[str, Counted], load: str) -> None:
    """Print a line for each mode, followed by the findings and reasons of runs without the verdict go."""
    print(f"\nhealthy smoke runs with {TIMES} busy processes per processor (load average at the end {load})")
    print(f"  {'':<12}{'runs':>6}{'go':>6}{'unsure':>8}{'false alarms':>14}{'wall s':>9}{'(range)':>14}")
    for mode, counted in found.items():
        runs = sum(counted.verdicts.values())
        took = counted.wall_s or [0.0]
        between = f"({min(took):.1f}-{max(took):.1f})"
        print(f"  {mode:<12}{runs:>6}{counted.verdicts['go']:>6}{counted.verdicts['incomplete']:>8}", end="")
        print(f"{counted.alarms:>14}{statistics.median(took):>9.1f}{between:>14}")
        for text, times in counted.said.most_common(10):
            print(f"    {times} x {text[:300]}")
    print("  aim: no false alarm in 50 runs of each")


if __name__ == "__main__":
    sys.exit(main())
