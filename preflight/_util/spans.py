"""Locations in a file."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

#: A snippet lets a person recognise the line; longer lines are cut.
MAX_SNIPPET_LENGTH = 240


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A range of one file: lines and columns count from 1, columns in characters, the end is exclusive.

    `path` is relative to the job's root with forward slashes. `snippet` is the whole first line as written (redacted,
    cut at `MAX_SNIPPET_LENGTH`), so that a finding can be shown without the file.

    Args:
        line, column: the start.
        end_line, end_column: the end.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    snippet: str = ""


def span_of(path: str, text: str, start: int, end: int) -> Span:
    """Return the span of `text[start:end]` (character offsets) in the file `path` whose whole content is `text`."""
    start = max(0, min(start, len(text)))
    end = max(start, min(end, len(text)))
    line = text.count("\n", 0, start) + 1
    line_start = text.rfind("\n", 0, start) + 1
    end_line = line + text.count("\n", start, end)
    end_line_start = text.rfind("\n", 0, end) + 1
    line_end = text.find("\n", line_start)
    snippet = text[line_start : line_end if line_end >= 0 else len(text)].rstrip("\r")
    return Span(path, line, start - line_start + 1, end_line, end - end_line_start + 1, snippet[:MAX_SNIPPET_LENGTH])


class Places:
    """Spans of one text by the offsets of its lines; `span_of` searches the whole text for each one."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text
        self._starts = [0]
        position = text.find("\n")
        while position >= 0:
            self._starts.append(position + 1)
            position = text.find("\n", position + 1)

    def span(self, start: int, end: int) -> Span:
        start = max(0, min(start, len(self._text)))
        end = max(start, min(end, len(self._text)))
        line, end_line = self.line(start), self.line(end)
        begin, end_begin = self._starts[line - 1], self._starts[end_line - 1]
        stop = self._starts[line] - 1 if line < len(self._starts) else len(self._text)
        snippet = self._text[begin:stop].rstrip("\r")[:MAX_SNIPPET_LENGTH]
        return Span(self._path, line, start - begin + 1, end_line, end - end_begin + 1, snippet)

    def value_span(self, start: int, end: int) -> Span | None:
        """Return the location where the template sets the value of `text[start:end]`; None without a template."""
        return None

    def line(self, offset: int) -> int:
        """Return the number of the line that contains a character, counted from 1."""
        return bisect_right(self._starts, offset)
