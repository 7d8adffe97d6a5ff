"""Places in a text and files, in preflight's terms and in those of an editor.

preflight counts lines at line feeds and columns in characters, both from 1. An editor also ends a line at a carriage
return, counts from 0, and counts columns in the units that it agreed on with the server, usually those of UTF-16.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from lsprotocol import types

if TYPE_CHECKING:
    from pygls.workspace import PositionCodec


_EDITOR_LINE_END = re.compile(r"\r\n|\n|\r")


class Text:
    """The text of one file.

    Args:
        text: without a byte-order mark, which editors do not count either.
        codec: converts between characters and the editor's units.
    """

    def __init__(self, text: str, codec: PositionCodec) -> None:
        self.text = text
        self._codec = codec
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._editor_starts = [0, *(match.end() for match in _EDITOR_LINE_END.finditer(text))]

    def offset(self, line: int, column: int) -> int:
        """The offset of a line and column of preflight, moved into the text if it is outside."""
        if line > len(self._starts):
            return len(self.text)
        start = self._starts[max(line, 1) - 1]
        end = self._starts[line] - 1 if 0 < line < len(self._starts) else len(self.text)
        return min(start + max(column, 1) - 1, max(start, end))

    def place(self, position: types.Position) -> tuple[int, int]:
        """The line and column of preflight at a position of the editor."""
        offset = self.offset_at(position)
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset_at(self, position: types.Position) -> int:
        """The offset at a position of the editor, moved into the text if it is outside."""
        if position.line >= len(self._editor_starts):
            return len(self.text)
        line = self._editor_line(max(position.line, 0))
        start = self._editor_starts[max(position.line, 0)]
        units = 0
        for index, character in enumerate(line):
            if units >= position.character:
                return start + index
            units += self._codec.client_num_units(character)
        return start + len(line)

    def position(self, offset: int) -> types.Position:
        """The editor's position of an offset."""
        line = bisect_right(self._editor_starts, offset) - 1
        before = self._editor_line(line)[: offset - self._editor_starts[line]]
        return types.Position(line, self._codec.client_num_units(before))

    def range(self, line: int, column: int, end_line: int, end_column: int) -> types.Range:
        """The editor's range between two places of preflight."""
        start = self.offset(line, column)
        end = max(start, self.offset(end_line, end_column))
        return types.Range(self.position(start), self.position(end))

    def line(self, number: int) -> str:
        """A line of preflight, counted from 1, without its end; empty if there is none."""
        if not 1 <= number <= len(self._starts):
            return ""
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end].rstrip("\r\n")

    def _editor_line(self, number: int) -> str:
        start = self._editor_starts[number]
        end = self._editor_starts[number + 1] if number + 1 < len(self._editor_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


#: Longer ones name no file: Linux allows paths of 4096 bytes, and each may become three characters.
_MAX_LENGTH = 3 * 4096 + 16


def path_of(uri: str) -> Path | None:
    """The absolute path that a `file:` URI names; None for any other URI, such as that of an unsaved new document."""
    if len(uri) > _MAX_LENGTH:
        return None
    try:
        parts = urlsplit(uri)
        path = os.fsdecode(unquote_to_bytes(parts.path.encode("utf-8", "surrogatepass")))
    except ValueError:
        return None
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/"):
        return None
    # With `..` removed, so that a path that begins with that of a folder is inside it.
    return None if "\0" in path else Path(os.path.normpath(path))


def uri_of(path: Path) -> str:
    """The URI of an absolute path."""
    return path.as_uri()
