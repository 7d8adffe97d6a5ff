"""The display capabilities of a stream: colours, width, height and characters."""

from __future__ import annotations

import codecs
import os
import shutil
from collections.abc import Mapping
from typing import TextIO

#: Columns of text that goes to a file or a pipe.
PLAIN_WIDTH = 100
#: Minimum and maximum columns of a layout.
MIN_WIDTH, MAX_WIDTH = 40, 140
#: Smallest number of rows; a smaller screen is treated like one of this height.
MIN_HEIGHT = 12


def is_terminal(stream: TextIO) -> bool:
    """Return whether the output goes to a terminal; False for a closed stream."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def can_redraw(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether lines can be rewritten. A dumb terminal cannot."""
    return is_terminal(stream) and environ.get("TERM") not in ("dumb", "unknown")


def wants_color(stream: TextIO, chosen: bool | None = None, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether to use colour: command line, NO_COLOR, FORCE_COLOR, stream; empty and `=0` have no effect."""
    if chosen is not None:
        return chosen
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name) not in (None, "", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return can_redraw(stream, environ) and environ.get("CLICOLOR") != "0"


def width_of(stream: TextIO) -> int:
    """Return the number of columns to fill; constant without a terminal, to make the output reproducible."""
    if not is_terminal(stream):
        return PLAIN_WIDTH
    return max(MIN_WIDTH, min(_size(stream)[0], MAX_WIDTH))


def height_of(stream: TextIO) -> int | None:
    """Return the number of rows of the screen; None if the stream is not a terminal."""
    return max(MIN_HEIGHT, _size(stream)[1]) if is_terminal(stream) else None


def _size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows: COLUMNS and LINES if they are set, otherwise those of the stream itself."""
    try:
        own = os.get_terminal_size(stream.fileno())
    except (AttributeError, ValueError, OSError):
        own = os.terminal_size((0, 0))
    common = shutil.get_terminal_size((PLAIN_WIDTH, 40))
    columns = common.columns if os.environ.get("COLUMNS") or not own.columns else own.columns
    lines = common.lines if os.environ.get("LINES") or not own.lines else own.lines
    return columns, lines


def encoding_of(stream: TextIO) -> str:
    """Return the encoding of a terminal; anything else is always UTF-8."""
    name = getattr(stream, "encoding", None) or "utf-8"
    if not is_terminal(stream):
        return "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "utf-8"


#: Plain replacements of our signs, for ASCII and national encodings; none is wider than the original.
_PLAIN = str.maketrans({"…": "~", "·": "-", "–": "-", "—": "-", "×": "x", "✓": "+", "✗": "!", "•": "*", "→": ">"})


def encoded(text: str, encoding: str) -> bytes:
    """Return `text` for a reader with this encoding: our symbols become plain characters, other characters escapes."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        pass
    if encoding in ("utf-8", "utf_8"):
        return text.encode("utf-8", "replace")
    return text.translate(_PLAIN).encode(encoding, "backslashreplace")
