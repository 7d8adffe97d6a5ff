"""The Python code of a notebook, each line at its line in the notebook's JSON."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import warnings
from typing import Any

from preflight.sources.base import SourceFile

#: Lines that IPython reads itself: `!pip install`, `%cd src`, `%%bash`.
_MAGIC = re.compile(r"\s*[!%?]")
_MAX_LINES = 50_000


def python_of(file: SourceFile) -> SourceFile | None:
    """The code of all cells that are Python; None for a file that is not a notebook, or has its lines in one."""
    try:
        cells: Any = json.loads(file.text).get("cells", ())
    except (ValueError, AttributeError, RecursionError):
        return None
    lines = [""] * min(file.text.count("\n") + 1, _MAX_LINES)
    at = 0
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        written = [str(line) for line in source] if isinstance(source, list) else []
        placed: dict[int, str] = {}
        for line in written:
            found = _find(file.text, line, at)
            if found < 0:
                break
            number = file.text.count("\n", 0, found)
            if number in placed or number >= len(lines):
                break
            placed[number], at = line, found + 1
        else:
            if _is_python(written):
                for number, line in placed.items():
                    lines[number] = "" if _MAGIC.match(line) else line.rstrip("\n")
    return SourceFile(file.path, "\n".join(lines), file.sha256, file.size_bytes) if any(lines) else None


def _find(text: str, line: str, start: int) -> int:
    """Where a line of code, with its line end, begins in the JSON, in which characters may be escaped."""
    for ascii_only in (False, True):
        escaped = json.dumps(line, ensure_ascii=ascii_only)
        found = text.find(escaped, start)
        if found >= 0:
            return found
    return -1


def _is_python(lines: list[str]) -> bool:
    """Whether a cell is valid Python without its magic lines, and not code of another language."""
    if not lines or lines[0].lstrip().startswith("%%"):
        return False
    code = "".join("\n" if _MAGIC.match(line) else line for line in lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return textwrap.dedent(code) == code
