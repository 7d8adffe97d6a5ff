"""A report of many nodes in every format: `python -m benchmarks rendering [RECORDING [COUNT]]`.

Each format has a process of its own, which judges the recording and then renders the report; what is measured is the
rendering alone, and the most memory that the process ever held. Formats of plugins take part like the built-in ones.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import fleets
from preflight import api, catalog
from preflight.reporters.base import Style

COUNT = 1000
ROUNDS = 3
#: One node in so many is odd: a report without findings would be no test.
ODD_EVERY = 41
#: Goals: seconds and MiB for each format, MB for a page.
MOST_S, MOST_MIB, MOST_PAGE_MB = 5.0, 1024, 10.0
_MAKE = "from benchmarks import fleets; fleets.ODD_EVERY = {odd}; fleets.main()"


def main() -> int:
    """Print a line for each format; 1 where one misses its goal."""
    given = sys.argv[1:]
    if given[:1] == ["--one"]:
        print(json.dumps(one(given[1], Path(given[2]))))
        return 0
    count = int(given[1]) if len(given) > 1 else COUNT
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".rendering-") as folder:
        base = Path(given[0]) if given else _real(Path(folder))
        file = Path(folder) / f"{count}.json"
        make = [sys.executable, "-c", _MAKE.format(odd=ODD_EVERY), str(file), str(count), str(base)]
        print(subprocess.run(make, check=True, capture_output=True, text=True).stdout.strip(), file=sys.stderr)
        names = [reporter.name for reporter in catalog.load(catalog.REPORTERS).items]
        measured = {name: [_apart(name, file) for _ in range(ROUNDS)] for name in names}
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\nthe report of {count} nodes (medians of {ROUNDS}; load average {load}; {os.cpu_count()} processors)")
    width = max(map(len, measured))
    print(f"  {'':<{width}}  {'wall s':>7}  {'cpu s':>6}  {'MiB':>6}  {'MB written':>10}")
    met = True
    for name, rounds in measured.items():
        wall_s, cpu_s, mib, size_mb = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"  {name:<{width}}  {wall_s:>7.2f}  {cpu_s:>6.2f}  {mib:>6.0f}  {size_mb:>10.2f}")
        met &= cpu_s < MOST_S and mib < MOST_MIB and (name != "html" or size_mb < MOST_PAGE_MB)
    print(
        f"  MiB: most of the process, judging included; goal {MOST_S:g} s, {MOST_MIB} MiB, html {MOST_PAGE_MB:g} MB: "
        f"{'met' if met else 'missed'}"
    )
    return 0 if met else 1


def one(name: str, file: Path) -> tuple[float, float, float, float]:
    """Seconds of wall time and of processor time, most MiB resident, and MB written, of this format in this process."""
    report = api.judge(file)
    reporter = catalog.named(catalog.REPORTERS, name)
    began, spent = time.perf_counter(), time.process_time()
    data = reporter.render(report, Style())
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - spent
    return wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(data) / 1e6


def _apart(name: str, file: Path) -> tuple[float, float, float, float]:
    command = [sys.executable, "-m", "benchmarks.rendering", "--one", name, str(file)]
    wall_s, cpu_s, mib, size_mb = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return wall_s, cpu_s, mib, size_mb


def _real(folder: Path) -> Path:
    fleets.real(folder)
    return folder / "recording.json"


if __name__ == "__main__":
    sys.exit(main())
