"""What a script imports, found without parsing it: most files of a repository say nothing else that counts."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator

from preflight.job.span import LONGEST_SNIPPET, Span
from preflight.lazy.patterns import lazy_pattern
from preflight.redact import scrub

#: A bound on what stands between the brackets, so that one that is never closed costs little.
_STATEMENT = lazy_pattern(
    r"^[ \t]*(?P<said>from[ \t]+(?P<package>[.\w]+)[ \t]+import[ \t]*(?:\([^()]{0,4000}\)|(?:[^\n;#()\\]|\\\n){1,2000})"
    r"|import[ \t]+(?:[^\n;#()\\]|\\\n){1,2000})",
    re.MULTILINE,
)


def imports(path: str, text: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, Span]]:
    """Every import statement that begins a line, with its place; one in a text that looks like it is taken for one."""
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
    snippet = scrub(text[line_start:line_end].rstrip("\r")[:LONGEST_SNIPPET])
    return Span(path, first, start - line_start + 1, last, end - lines[last - 1] + 1, snippet)
