"""Start-up: `preflight --version` and `--help` compared with a Python that does nothing. Budget: 80 ms each."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.stopwatch import processes, table

COMMAND = str(Path(sys.executable).parent / "preflight")


def main() -> None:
    """Print the table."""
    commands = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "python -c 'import click'": (sys.executable, "-c", "import click"),
        "preflight --version": (COMMAND, "--version"),
        "preflight --help": (COMMAND, "--help"),
    }
    table("start-up", processes(commands, rounds=15), against="python -c pass", note="budget 80 ms")


if __name__ == "__main__":
    main()
