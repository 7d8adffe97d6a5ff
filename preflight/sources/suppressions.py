"""Suppression comments by the sign that begins them: `#` as everywhere, `//` in JSON with comments."""

from __future__ import annotations

import re

from preflight.job import Suppression, span_of
from preflight.sources.base import SourceFile
from preflight.sources.comments import suppressions


def suppressions_in(path: str, text: str, *, sign: str = "#") -> tuple[Suppression, ...]:
    """The suppressions of a file whose comments begin with `sign`; placed as `comments.suppressions` does."""
    if "preflight:" not in text:
        return ()
    if sign == "#":
        return suppressions(SourceFile(path, text, "", len(text)))
    # The same length keeps every offset, so the one reader serves all signs.
    marked = re.sub(re.escape(sign), "#".ljust(len(sign)), text)
    return tuple(
        Suppression(
            found.path,
            found.line,
            found.names,
            found.reason,
            span_of(path, text, *_offsets(text, found.span.line, found.span.column, found.span.end_column)),
        )
        for found in suppressions(SourceFile(path, marked, "", len(text)))
    )


def _offsets(text: str, line: int, column: int, end_column: int) -> tuple[int, int]:
    start = 0
    for _ in range(line - 1):
        start = text.index("\n", start) + 1
    return start + column - 1, start + end_column - 1
