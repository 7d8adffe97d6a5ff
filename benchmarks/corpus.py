"""Lint of a folder of real files against parsing them with the same parsers, cold and from the cache.

`python -m benchmarks corpus [DIR]`. Without a folder the repository's own examples and test cases are taken, several
times over, and generated launch scripts beside them. Aims: at most 3 times the parsing, from the cache at most half of it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import parsing, scripts
from benchmarks.measuring import calls, table

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the table for the folder given, or for a made one."""
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fill(root)
        measure(root)


def fill(root: Path, *, copies: int = 1) -> None:
    """The examples, the cases of the rules and the package's own modules, and a quarter as many generated scripts."""
    for number in range(copies):
        for name in ("examples", "tests/rules/cases", "preflight", "rules"):
            shutil.copytree(ROOT / name, root / f"part{number}" / name.replace("tests/", ""), symlinks=True)
    scripts.write(root / "generated", 250)


def measure(root: Path) -> None:
    """Parse, lint, and lint again from the cache, in turns."""
    from preflight import api
    from preflight.cache import Cache
    from preflight.walk import walk

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder) / "cache")
        files = [root / path for path in walk(root, ".").files]
        api.lint([root], root=root, cache=cache)
        found = calls(
            {
                "parse them alone": lambda: parsing.parse(files),
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
