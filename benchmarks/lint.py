"""Lint of one job, compared with only parsing its files. Budget: 300 ms for the whole command."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import parse_baseline
from benchmarks.stopwatch import calls, processes, table

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "megatron-slurm" / "good"
COMMAND = str(Path(sys.executable).parent / "preflight")


def main() -> None:
    """Print one table of whole commands and one of calls in one process."""
    from preflight import lint

    files = sorted(path for path in JOB.iterdir() if path.is_file())
    commands = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "python -c 'import click, pydantic, yaml'": (sys.executable, "-c", "import click, pydantic, yaml"),
        "parse its files alone": (sys.executable, parse_baseline.__file__, *map(str, files)),
        "preflight lint": (COMMAND, "lint", "--no-cache", str(JOB)),
        "preflight lint -o json": (COMMAND, "lint", "--no-cache", str(JOB), "-o", "json"),
        "preflight lint, from the cache": (COMMAND, "lint", str(JOB)),
    }
    table(
        f"lint of one job of {len(files)} files, as a command",
        processes(commands, rounds=9),
        against="python -c 'import click, pydantic, yaml'",
        note="budget 300 ms, and 5",
    )
    inside = {"parse its files alone": lambda: parse_baseline.parse(files), "lint": lambda: lint([JOB])}
    table("the same in one process, everything imported", calls(inside, rounds=15), against="parse its files alone")


if __name__ == "__main__":
    main()
