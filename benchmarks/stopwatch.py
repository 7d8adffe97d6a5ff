"""Times processes and calls in turns, so that other load affects all of them equally."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Times:
    """The times of one contestant in each round: wall seconds, and processor seconds if it is a process."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def wall_ms(self) -> float:
        """Median wall time in milliseconds."""
        return statistics.median(self.wall_s) * 1000

    @property
    def cpu_ms(self) -> float:
        """Median CPU time in milliseconds, which does not change on a busy machine."""
        return statistics.median(self.cpu_s) * 1000


def processes(commands: Mapping[str, Sequence[str]], *, rounds: int, cwd: str | None = None) -> dict[str, Times]:
    """Run every command once per round, after one round that only warms the disk cache."""
    found = {name: Times() for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            began, spent = time.perf_counter(), _children()
            subprocess.run(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if number:
                found[name].wall_s.append(time.perf_counter() - began)
                found[name].cpu_s.append(_children() - spent)
    return found


def calls(functions: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, Times]:
    """Call every function once per round, after one round that fills caches."""
    found = {name: Times() for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            began, spent = time.perf_counter(), time.process_time()
            function()
            if number:
                found[name].wall_s.append(time.perf_counter() - began)
                found[name].cpu_s.append(time.process_time() - spent)
    return found


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def machine() -> str:
    """How busy this machine is, and its number of processors."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"load average {load}; {os.cpu_count()} processors"


def table(title: str, found: Mapping[str, Times], *, against: str, note: str = "") -> None:
    """Print the medians of each contestant, and its ratio to `against`."""
    rounds = len(found[against].wall_s)
    print(f"\n{title} (medians of {rounds}; {machine()})")
    width = max(map(len, found))
    print(f"  {'':<{width}}  {'wall ms':>9}  {'cpu ms':>9}  {'ratio':>6}")
    for name, times in found.items():
        ratio = times.cpu_ms / found[against].cpu_ms if found[against].cpu_ms else float("nan")
        print(f"  {name:<{width}}  {times.wall_ms:>9.1f}  {times.cpu_ms:>9.1f}  {ratio:>6.2f}")
    print(f"  ratio: CPU time against {against!r}" + (f"; {note}" if note else ""))
