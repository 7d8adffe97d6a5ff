"""`# preflight: ignore[ID, name] reason`, in any language whose comments begin with `#`."""

from __future__ import annotations

import re

from preflight.job import Suppression, span_of
from preflight.sources.base import SourceFile

_MARK = re.compile(r"#[ \t]*preflight:[ \t]*ignore\b[ \t]*(?:\[([^\]\n]*)\])?[ \t:]*([^\n]*)")
_SEPARATOR = re.compile(r"[,\s]+")
#: Files without the words are not looked at line by line.
_WORD = "preflight:"


def suppressions(file: SourceFile) -> tuple[Suppression, ...]:
    """Every suppression comment of a file.

    At the end of a line of code it speaks of that line; alone on its line, of the next line that is neither blank
    nor a comment. In shell, a command continued over several lines by backslashes is one place for a reader, but
    findings point at single lines, so the comment belongs above the line it is about. Without brackets it has no
    names and suppresses nothing; the engine reports it as unused.
    """
    text = file.text
    if _WORD not in text:
        return ()
    lines = text.split("\n")
    found: list[Suppression] = []
    offset = 0
    for number, line in enumerate(lines, start=1):
        match = _MARK.search(line) if _WORD in line else None
        if match is not None and not _is_quoted(line, match.start()):
            alone = not line[: match.start()].strip()
            about = _next_code(lines, number) if alone else number
            names = tuple(dict.fromkeys(name for name in _SEPARATOR.split(match.group(1) or "") if name))
            span = span_of(file.path, text, offset + match.start(), offset + len(line.rstrip("\r")))
            found.append(Suppression(file.path, about, names, match.group(2).strip(), span))
        offset += len(line) + 1
    return tuple(found)


def _next_code(lines: list[str], number: int) -> int:
    """The first line after line `number` that is code; `number` itself when there is none."""
    for index in range(number, len(lines)):
        stripped = lines[index].strip()
        # A scheduler directive is a comment to the shell and the very thing a finding points at.
        if stripped and (not stripped.startswith("#") or stripped.startswith("#SBATCH")):
            return index + 1
    return number


def _is_quoted(line: str, at: int) -> bool:
    """Whether the character at `at` stands inside a string that began on this line."""
    quote = ""
    index = 0
    while index < at:
        sign = line[index]
        if sign == "\\" and quote != "'":
            index += 1
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (index == 0 or line[index - 1] in " \t;"):
            return False
        index += 1
    return bool(quote)
