"""`preflight judge` of recordings of 100 to 10,000 nodes. Goal: 5 s and 1 GiB for the largest, and a constant cost per
node.

`python -m benchmarks judge [RECORDING [COUNT...]]`. The recordings are made (`benchmarks/fleets.py`) from a check of
four virtual nodes and their links, or from the one given. Whole processes are measured, report included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import fleets

COUNTS = (100, 300, 1000, 3000, 10_000)
ROUNDS = 3


def main() -> None:
    """Print the curve."""
    given = sys.argv[1:]
    counts = [int(word) for word in given[1:]] or COUNTS
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".judging-") as folder:
        base = Path(given[0]) if given else _real(Path(folder))
        files = {count: Path(folder) / f"{count}.json" for count in counts}
        for count, file in files.items():
            # In a separate process, because the measured processes would inherit this one's size.
            make = [sys.executable, "-m", "benchmarks.fleets", str(file), str(count), str(base)]
            print(subprocess.run(make, check=True, capture_output=True, text=True).stdout.strip(), file=sys.stderr)
        measured: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
        for _ in range(ROUNDS):
            for count, file in files.items():
                measured[count].append(judge(file))
    load_average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\njudge of N nodes (medians of {ROUNDS}; load average {load_average}; {os.cpu_count()} processors)")
    print(f"  {'nodes':>6}  {'wall s':>7}  {'cpu s':>6}  {'MiB':>6}  {'cpu ms a node':>13}  {'KiB a node':>10}")
    least = min(counts)
    (_, idle_s, idle_mib) = (statistics.median(values) for values in zip(*measured[least], strict=True))
    for count, rounds in measured.items():
        wall_s, cpu_s, mib = (statistics.median(values) for values in zip(*rounds, strict=True))
        more = count - least
        each = f"{(cpu_s - idle_s) / more * 1000:>13.2f}  {(mib - idle_mib) * 1024 / more:>10.1f}" if more else ""
        print(f"  {count:>6}  {wall_s:>7.2f}  {cpu_s:>6.2f}  {mib:>6.0f}  {each}")
    print(f"  per node: in addition to {least} nodes; goal 5 s and 1024 MiB for 10000")


def _real(folder: Path) -> Path:
    fleets.real(folder)
    return folder / "recording.json"


def judge(file: Path) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak resident MiB of one process."""
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.execv(sys.executable, [sys.executable, "-m", "preflight", "judge", str(file)])
    _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1, 3):
        raise RuntimeError(f"judge of {file.name} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
