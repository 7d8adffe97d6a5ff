"""Imports found without parsing equal those that the parser finds."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from preflight.sources.python.imports import import_statements

TEXT = """import os
import a.b as c, d  # why
from .x import (
    y,
    z,
)
from p import q, \\
    r
if True:
    from inner import thing
'''
no import here
'''
value = 1; import late
from broken import (
"""


def import_locations(text: str) -> list[tuple[str, int, int]]:
    return [(ast.unparse(node), span.line, span.column) for node, span in import_statements("m.py", text)]


def test_statements_are_found_with_their_locations() -> None:
    assert import_locations(TEXT) == [
        ("import os", 1, 1),
        ("import a.b as c, d", 2, 1),
        ("from .x import y, z", 3, 1),
        ("from p import q, r", 7, 1),
        ("from inner import thing", 10, 5),
    ]


@given(st.lists(st.sampled_from(["import a", "from b import c", "from .d import (e, f)", "x = 1", ""])))
def test_lines_are_read_as_the_parser_reads_them(lines: list[str]) -> None:
    text = "\n".join(lines)
    nodes = [node for node in ast.parse(text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert import_locations(text) == [(ast.unparse(node), node.lineno, node.col_offset + 1) for node in nodes]


def test_unclosed_brackets_are_scanned_quickly() -> None:
    assert import_locations("from a import (\n" * 20_000) == []
