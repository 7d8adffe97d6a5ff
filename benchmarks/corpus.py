"""Lint of a folder of real files against parsing them with the same parsers, cold and from the cache.

`python -m benchmarks corpus [DIR]`. Without a folder, the repository's own code and examples are taken, every tenth of
the rules' test cases and 50 generated launch scripts. Aims: at most 3 times the parsing, from the cache at most half.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import parse_baseline, scripts
from benchmarks.stopwatch import calls, table
from tests.rules.case_files import all_cases

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the table for the given folder, or for a generated one."""
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root)
        measure(root)


def fill(root: Path) -> None:
    """Copy files that every clone has, mixed like a training repository: mostly Python, some jobs."""
    for name in ("preflight", "rules", "checks", "tests", "reference_trainer", "examples"):
        ignored = shutil.ignore_patterns("cases", "__pycache__", "tests")
        shutil.copytree(ROOT / name, root / name.replace("tests", "lib"), symlinks=True, ignore=ignored)
    for case in all_cases()[::10]:
        case.write(root / "jobs" / case.rule)
    (root / "generated").mkdir()
    scripts.write(root / "generated", 50)


def measure(root: Path) -> None:
    """Parse, lint, and lint again from the cache, in turns."""
    from preflight import api
    from preflight._util.cache import Cache
    from preflight.sources.discovery.walk import walk

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "cache")
        files = [root / path for path in walk(root, ".").files]
        api.lint([root], root=root, cache=cache)
        found = calls(
            {
                "parse them alone": lambda: parse_baseline.parse(files),
                "lint": lambda: api.lint([root], root=root),
                "lint from the cache": lambda: api.lint([root], root=root, cache=cache),
            },
            rounds=5,
        )
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        title = f"lint of {len(files)} files, {lines} lines"
        table(title, found, against="parse them alone", note="aims 3 and 0.5")


if __name__ == "__main__":
    main()
