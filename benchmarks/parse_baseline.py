"""The baseline for lint: opening the same files and parsing them, without using the result."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterable
from pathlib import Path


def parse(paths: Iterable[Path]) -> None:
    """Parse shell scripts with tree-sitter, JSON with json, Python with ast, YAML with libyaml; read everything else.

    A file with a syntax error costs the time until the error.
    """
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_bash.language()))
    for path in paths:
        data = path.read_bytes()
        try:
            if path.suffix in (".sh", ".sbatch", ".slurm", ".bash"):
                parser.parse(data)
            elif path.suffix == ".json":
                json.loads(data)
            elif path.suffix == ".py":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ast.parse(data)
            elif path.suffix in (".yaml", ".yml"):
                _events(data)
        except (ValueError, SyntaxError, RecursionError):
            continue


def _events(data: bytes) -> None:
    import yaml

    try:
        for _ in yaml.parse(data, Loader=yaml.CSafeLoader):
            pass
    except yaml.YAMLError:
        return


if __name__ == "__main__":
    import sys

    parse(Path(name) for name in sys.argv[1:])
