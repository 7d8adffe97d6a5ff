"""False alarms: healthy smoke runs while this machine has four times as much to do as it has processors for.

`python -m benchmarks healthy [MODES] [ROUNDS]`, such as `healthy async,ssp 50`; without a word one round of all modes.
Each run is the command a user would type, over nodes that this machine plays. A run that says no-go is a false alarm,
and its findings are printed. One that is incomplete (it could not tell, the machine was too busy) is counted apart,
with its reasons. The exit code is 1 where there was a false alarm.
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

from preflight.node.process import die_with_parent

ROOT = Path(__file__).resolve().parents[1]
#: So many processes that only compute run beside, for each processor: with them it has five times its share to do.
TIMES = 4
#: A run that takes longer is ended, and counts as one that could not tell.
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
    """What became of the runs of one mode."""

    verdicts: Counter[str] = field(default_factory=Counter)
    wall_s: list[float] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)

    @property
    def alarms(self) -> int:
        """Healthy runs that were called broken."""
        return sum(times for verdict, times in self.verdicts.items() if verdict not in ("go", "incomplete"))


def main() -> int:
    """Run all modes in turns, and print a line for each."""
    modes, rounds = asked(sys.argv[1:])
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        print(f"there is no mode {unknown[0]!r}; there are {', '.join(MODES)}", file=sys.stderr)
        return 2
    found = {mode: Counted() for mode in modes}
    with burners(TIMES * len(os.sched_getaffinity(0))):
        for number in range(rounds):
            for mode, counted in found.items():
                one(mode, counted)
                print(
                    f"  round {number + 1} of {rounds}, {mode}: {dict(counted.verdicts)}", file=sys.stderr, flush=True
                )
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    show(found, load)
    return 1 if any(counted.alarms for counted in found.values()) else 0


def asked(words: Sequence[str]) -> tuple[list[str], int]:
    """Which modes, and how many rounds."""
    modes = [mode for word in words if not word.isdigit() for mode in word.split(",") if mode]
    return modes or list(MODES), next((int(word) for word in words if word.isdigit()), 1)


@contextmanager
def burners(count: int) -> Iterator[None]:
    """So many processes that compute and do nothing else, no less important than any other."""
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
    """Until it is killed; with whoever started it it ends, too."""
    try:
        die_with_parent()
        number = 1
        while True:
            number = (number * 1103515245 + 12345) % 2147483648
    finally:
        os._exit(1)


def one(mode: str, counted: Counted) -> None:
    """One run."""
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
        counted.said[f"not over after {LIMIT_S:g} s"] += 1
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
    """A line for each mode, and below it what those runs said that were not simply go."""
    print(f"\nhealthy smoke runs beside {TIMES} busy processes a processor (load average at the end {load})")
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
