"""What lint is measured against: opening the same files and parsing them, with nothing made of it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from pathlib import Path


def parse(paths: Iterable[Path]) -> None:
    """Parse shell scripts with tree-sitter, JSON with json, Python with ast, and read everything else."""
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_bash.language()))
    for path in paths:
        data = path.read_bytes()
        if path.suffix in (".sh", ".sbatch"):
            parser.parse(data)
        elif path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".py":
            ast.parse(data)


if __name__ == "__main__":
    import sys

    parse(Path(name) for name in sys.argv[1:])
