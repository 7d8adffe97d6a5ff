"""A report of many nodes in every format: `python -m benchmarks report_formats [RECORDING [COUNT]]`.

Each format has a separate process, which judges the recording and then renders the report; only the rendering is timed;
the memory is the peak of the whole process. Formats of plugins take part like the built-in ones.
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
from preflight import api
from preflight.plugins import registry
from preflight.reporters.base import Style

COUNT = 1000
ROUNDS = 3
#: One node in this many is odd, because a report without findings would not test the formats.
ODD_EVERY = 41
#: Goals: seconds and MiB for each format, MB for a page.
MAX_S, MAX_MIB, MAX_PAGE_MB = 5.0, 1024, 10.0
_MAKE = "from benchmarks import fleets; fleets.ODD_EVERY = {odd}; fleets.main()"


def main() -> int:
    """Print a line for each format; return 1 if one misses its goal."""
    given = sys.argv[1:]
    if given[:1] == ["--one"]:
        print(json.dumps(measure_format(given[1], Path(given[2]))))
        return 0
    count = int(given[1]) if len(given) > 1 else COUNT
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".rendering-") as folder:
        base = Path(given[0]) if given else _real(Path(folder))
        file = Path(folder) / f"{count}.json"
        make = [sys.executable, "-c", _MAKE.format(odd=ODD_EVERY), str(file), str(count), str(base)]
        print(subprocess.run(make, check=True, capture_output=True, text=True).stdout.strip(), file=sys.stderr)
        names = [reporter.name for reporter in registry.load(registry.REPORTERS).items]
        measured = {name: [_in_subprocess(name, file) for _ in range(ROUNDS)] for name in names}
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\nthe report of {count} nodes (medians of {ROUNDS}; load average {load}; {os.cpu_count()} processors)")
    width = max(map(len, measured))
    print(f"  {'':<{width}}  {'wall s':>7}  {'cpu s':>6}  {'MiB':>6}  {'MB written':>10}")
    met = True
    for name, rounds in measured.items():
        wall_s, cpu_s, mib, size_mb = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"  {name:<{width}}  {wall_s:>7.2f}  {cpu_s:>6.2f}  {mib:>6.0f}  {size_mb:>10.2f}")
        met &= cpu_s < MAX_S and mib < MAX_MIB and (name != "html" or size_mb < MAX_PAGE_MB)
    print(
        f"  MiB: most of the process, judging included; goal {MAX_S:g} s, {MAX_MIB} MiB, html {MAX_PAGE_MB:g} MB: "
        f"{'met' if met else 'missed'}"
    )
    return 0 if met else 1


def measure_format(name: str, file: Path) -> tuple[float, float, float, float]:
    """Wall seconds, processor seconds, peak resident MiB and MB written, of this format in this process."""
    report = api.judge(file)
    reporter = registry.load_named(registry.REPORTERS, name)
    began, spent = time.perf_counter(), time.process_time()
    data = reporter.render(report, Style())
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - spent
    return wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, len(data) / 1e6


def _in_subprocess(name: str, file: Path) -> tuple[float, float, float, float]:
    command = [sys.executable, "-m", "benchmarks.report_formats", "--one", name, str(file)]
    wall_s, cpu_s, mib, size_mb = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return wall_s, cpu_s, mib, size_mb


def _real(folder: Path) -> Path:
    fleets.real(folder)
    return folder / "recording.json"


if __name__ == "__main__":
    sys.exit(main())
