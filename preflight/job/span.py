"""Where in a file something stands."""

from __future__ import annotations

from dataclasses import dataclass

#: A snippet is for a person to recognise the place; longer lines are cut.
LONGEST_SNIPPET = 240


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A stretch of one file: lines and columns count from 1, columns in characters, the end is exclusive.

    `path` is relative to the job's root with forward slashes. `snippet` is the whole first line as written
    (redacted, cut at `LONGEST_SNIPPET`), so that a finding can be shown with no file at hand.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    snippet: str = ""


def span_of(path: str, text: str, start: int, end: int) -> Span:
    """The span of `text[start:end]` (character offsets) in the file `path` whose whole content is `text`."""
    start = max(0, min(start, len(text)))
    end = max(start, min(end, len(text)))
    line = text.count("\n", 0, start) + 1
    line_start = text.rfind("\n", 0, start) + 1
    end_line = line + text.count("\n", start, end)
    end_line_start = text.rfind("\n", 0, end) + 1
    line_end = text.find("\n", line_start)
    snippet = text[line_start : line_end if line_end >= 0 else len(text)].rstrip("\r")
    return Span(path, line, start - line_start + 1, end_line, end - end_line_start + 1, snippet[:LONGEST_SNIPPET])
