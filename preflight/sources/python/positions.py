"""Converts positions of syntax-tree nodes to characters.

Python counts columns in UTF-8 bytes and also ends lines at a lone carriage return; spans count characters and end lines
at line feeds only. This module converts between the two.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right

from preflight._util.spans import MAX_SNIPPET_LENGTH, Span

_LINE_FEED = re.compile(r"\n")
_LINE_END = re.compile(r"\r\n|\r|\n")


class Positions:
    """Turns nodes of the tree of `text` into offsets, text and spans."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._lines = [0, *(match.end() for match in _LINE_FEED.finditer(text))]
        # Without carriage returns Python ends lines where spans do.
        self._python_lines = [0, *(match.end() for match in _LINE_END.finditer(text))] if "\r" in text else self._lines

    def offset(self, line: int, byte_column: int) -> int:
        """The character offset of a position that Python gives as line (from 1) and column in UTF-8 bytes."""
        line = max(1, min(line, len(self._python_lines)))
        start = self._python_lines[line - 1]
        end = self._python_lines[line] if line < len(self._python_lines) else len(self._text)
        content = self._text[start:end]
        if content.isascii():
            return start + min(byte_column, len(content))
        return start + len(content.encode("utf-8", "surrogatepass")[:byte_column].decode("utf-8", "ignore"))

    def bounds(self, node: ast.AST) -> tuple[int, int]:
        """The start and end offset of a node that has a position; otherwise the start of the file."""
        line = getattr(node, "lineno", None)
        if line is None:
            return 0, 0
        start = self.offset(line, node.col_offset)  # type: ignore[attr-defined]
        end_line, end_column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
        if end_line is None or end_column is None:
            return start, start
        return start, max(start, self.offset(end_line, end_column))

    def span(self, node: ast.AST) -> Span:
        """The span of a node."""
        return self.between(*self.bounds(node))

    def between(self, start: int, end: int) -> Span:
        """The span of `text[start:end]`, as from `span_of`, without counting lines from the start each time."""
        line = bisect_right(self._lines, start)
        end_line = bisect_right(self._lines, end)
        line_start = self._lines[line - 1]
        line_end = self._lines[line] - 1 if line < len(self._lines) else len(self._text)
        return Span(
            self._path,
            line,
            start - line_start + 1,
            end_line,
            end - self._lines[end_line - 1] + 1,
            self._text[line_start:line_end].rstrip("\r")[:MAX_SNIPPET_LENGTH],
        )

    def text(self, node: ast.AST, *, max_length: int = 120) -> str:
        """The text of the node, on one line."""
        start, end = self.bounds(node)
        written = " ".join(self._text[start : min(end, start + 4 * max_length)].split())
        return written if len(written) <= max_length else written[: max_length - 1] + "…"
