"""`make fuzz`: every target for some minutes of CPU, then a table. `python -m tests.fuzz --help`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / ".fuzz"
_DONE = re.compile(r"^#\d+\s+(?:DONE|INITED|NEW|REDUCE|pulse|RELOAD)\s+cov: (\d+) ft: (\d+)", re.M)
_STAT = re.compile(r"^stat::(\w+):\s+(\d+)", re.M)


@dataclass(frozen=True)
class Row:
    """The result of one target."""

    name: str
    executions: int
    edges: int
    features: int
    cpu_s: float
    peak_mib: int
    findings: tuple[str, ...]

    def text(self) -> str:
        """Format it as a line of the table."""
        return (
            f"{self.name:<24} {self.executions:>10} {self.edges:>7} {self.features:>8} {self.cpu_s / 60:>8.1f} "
            f"{self.peak_mib:>8} {len(self.findings):>8}"
        )


_HEADER = (
    f"{'target':<24} {'executions':>10} {'edges':>7} {'features':>8} {'CPU min':>8} {'peak MiB':>8} {'findings':>8}"
)


def main() -> int:
    """Fuzz the requested targets; exit code 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Coverage-guided fuzzing of preflight.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all; a beginning names several")
    parser.add_argument("--minutes", type=float, default=1.0, help="of CPU for each target (default: 1)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="corpus and findings (default: .fuzz)")
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    given = parser.parse_args()
    chosen = [n for n in TARGETS if not given.targets or any(n == t or n.startswith(f"{t}-") for t in given.targets)]
    if given.list or not chosen:
        print("\n".join(TARGETS), file=sys.stdout if given.list else sys.stderr)
        return 0 if given.list else 2
    print(_HEADER, flush=True)
    rows = []
    for name in chosen:
        rows.append(_fuzzed(name, given.minutes * 60, given.folder))
        print(rows[-1].text(), flush=True)
    found = [(row.name, finding) for row in rows for finding in row.findings]
    for name, finding in found:
        print(f"{name}: {finding}\n    {given.folder / 'findings' / name}", file=sys.stderr)
    print(f"{len(found)} findings in {sum(row.executions for row in rows)} executions")
    return 1 if found else 0


def _fuzzed(name: str, cpu_s: float, folder: Path) -> Row:
    command = [sys.executable, "-m", "tests.fuzz.fuzzer", name, str(cpu_s), str(folder)]
    log = folder / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=_ROOT, stdout=out, stderr=out, env=environment)
        try:
            _, _, used = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.terminate()
            raise
    said = log.read_text("utf-8", "replace")
    stats = {key: int(value) for key, value in _STAT.findall(said)}
    coverage = _DONE.findall(said)
    edges, features = coverage[-1] if coverage else ("0", "0")
    runs = stats.get("number_of_executed_units") or int((re.findall(r"^#(\d+)", said, re.M) or ["0"])[-1])
    place = folder / "findings" / name
    fresh = (
        [p for p in sorted(place.iterdir()) if p.name != "inputs.json" and _touched(p) >= began]
        if place.is_dir()
        else []
    )
    found = tuple((p / "story.txt").read_text().partition("\n")[0] if p.is_dir() else p.name for p in fresh)
    if "stat::number_of_executed_units" not in said and not found:
        found = (f"the fuzzer ended early; see {log}",)
    return Row(name, runs, int(edges), int(features), used.ru_utime + used.ru_stime, used.ru_maxrss // 1024, found)


def _touched(path: Path) -> float:
    return (path / "input").stat().st_mtime if path.is_dir() else path.stat().st_mtime


if __name__ == "__main__":
    sys.exit(main())
