"""Finds the imports of a script without parsing it: most files of a repository have no other relevant claims."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator

from preflight._util.redaction import scrub
from preflight._util.spans import MAX_SNIPPET_LENGTH, Span

#: The text between brackets is bounded, so that an unclosed bracket costs little.
_STATEMENT = re.compile(
    r"^[ \t]*(?P<said>from[ \t]+(?P<package>[.\w]+)[ \t]+import[ \t]*(?:\([^()]{0,4000}\)|(?:[^\n;#()\\]|\\\n){1,2000})"
    r"|import[ \t]+(?:[^\n;#()\\]|\\\n){1,2000})",
    re.MULTILINE,
)


def imports(path: str, text: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, Span]]:
    """Every import statement at the start of a line, with its location; an import inside a string is also included."""
    lines: list[int] = []
    for match in _STATEMENT.finditer(text):
        try:
            statement = ast.parse(match["said"]).body[0]
        except (SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
            continue
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        lines = lines or [0, *(end.end() for end in re.finditer("\n", text))]
        yield statement, _span(path, text, lines, match.start("said"), match.end("said"))


def _span(path: str, text: str, lines: list[int], start: int, end: int) -> Span:
    first, last = bisect_right(lines, start), bisect_right(lines, end)
    line_start = lines[first - 1]
    line_end = lines[first] - 1 if first < len(lines) else len(text)
    snippet = scrub(text[line_start:line_end].rstrip("\r")[:MAX_SNIPPET_LENGTH])
    return Span(path, first, start - line_start + 1, last, end - lines[last - 1] + 1, snippet)
