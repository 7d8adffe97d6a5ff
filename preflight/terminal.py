"""What the stream that somebody reads can show: colours, width, height, and which letters."""

from __future__ import annotations

import codecs
import os
import shutil
from collections.abc import Mapping
from typing import TextIO

#: So wide is text that goes to a file or a pipe.
PLAIN_WIDTH = 100
#: Narrower than this nothing is laid out; wider than that nobody reads.
NARROWEST, WIDEST = 40, 140
#: A screen with fewer rows is written to as if it had so many.
LOWEST = 12


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody sees what is written there at once; a closed stream is none."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def can_redraw(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether lines can be taken back. A dumb terminal shows everything once and for good."""
    return is_terminal(stream) and environ.get("TERM") not in ("dumb", "unknown")


def wants_color(stream: TextIO, chosen: bool | None = None, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to colour: what the command line says, then NO_COLOR, then FORCE_COLOR, then what the stream is.

    An empty variable says nothing (no-color.org), and neither do `CLICOLOR_FORCE=0` and `FORCE_COLOR=0`.
    """
    if chosen is not None:
        return chosen
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name) not in (None, "", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return can_redraw(stream, environ) and environ.get("CLICOLOR") != "0"


def width_of(stream: TextIO) -> int:
    """How many columns to fill; for what is no terminal a width of its own, so that the same run writes the same."""
    if not is_terminal(stream):
        return PLAIN_WIDTH
    return max(NARROWEST, min(_size(stream)[0], WIDEST))


def height_of(stream: TextIO) -> int | None:
    """How many rows the screen has; None where there is none."""
    return max(LOWEST, _size(stream)[1]) if is_terminal(stream) else None


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows: COLUMNS and LINES where they are set, else those of the stream itself."""
    try:
        own = os.get_terminal_size(stream.fileno())
    except (AttributeError, ValueError, OSError):
        own = os.terminal_size((0, 0))
    common = shutil.get_terminal_size((PLAIN_WIDTH, 40))
    columns = common.columns if os.environ.get("COLUMNS") or not own.columns else own.columns
    lines = common.lines if os.environ.get("LINES") or not own.lines else own.lines
    return columns, lines


def encoding_of(stream: TextIO) -> str:
    """In which encoding a person reads what goes there; what is no terminal is always UTF-8, whoever reads it."""
    name = getattr(stream, "encoding", None) or "utf-8"
    if not is_terminal(stream):
        return "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "utf-8"


#: Signs of our own, for those who have only ASCII or some national set of letters; none becomes wider by it.
_PLAIN = str.maketrans({"…": "~", "·": "-", "–": "-", "—": "-", "×": "x", "✓": "+", "✗": "!", "•": "*", "→": ">"})


def encoded(text: str, encoding: str) -> bytes:
    """`text` for a reader with this encoding: signs of ours become plain ones, foreign letters their escapes."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        pass
    if encoding in ("utf-8", "utf_8"):
        return text.encode("utf-8", "replace")
    return text.translate(_PLAIN).encode(encoding, "backslashreplace")
