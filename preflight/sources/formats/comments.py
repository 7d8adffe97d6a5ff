"""`# preflight: ignore[ID, name] reason`, in any language whose comments last to the end of the line."""

from __future__ import annotations

import re

from preflight.model.job import Places, Suppression
from preflight.sources.base import SourceFile

_MARK = re.compile(r"(#|//)[ \t]*preflight:[ \t]*ignore\b[ \t]*(?:\[([^\]\n]*)\])?[ \t:]*([^\n]*)")
#: Directives of schedulers.
_DIRECTIVES = ("#SBATCH", "#PBS", "#BSUB", "#$ ", "#COBALT", "#flux:", "# flux:")
_SEPARATOR = re.compile(r"[,\s]+")
#: The number of comments that are used in one file, and of lines that one comment or all of them may cover.
_MAX_COMMENTS = 1000
_MAX_LINES = 20_000
_MAX_NAMES = 100
#: The rest of a longer line is not searched for a comment.
_MAX_LINE_LENGTH = 16_384
#: Files without these words are not searched line by line.
_WORD = "preflight:"


def suppressions(file: SourceFile, *, signs: tuple[str, ...] = ("#",)) -> tuple[Suppression, ...]:
    """Every suppression comment of a file whose comments begin with one of `signs` (`#`, `//`).

    At the end of a line of code it applies to that line; alone on its line, to the next line that is neither blank nor
    a comment. A command continued over several lines by backslashes cannot contain a comment, so one above it or at its
    end applies to all its lines: there is one suppression for each of them, with the comment's span and its own line
    first. Without brackets it has no names and suppresses nothing; the engine reports it as unused.
    """
    text = file.text
    if _WORD not in text:
        return ()
    lines = text.split("\n")
    found: list[Suppression] = []
    offset = code = comments = 0
    places = Places(file.path, text)
    for number, line in enumerate(lines, start=1):
        match = _mark(line, signs) if _WORD in line[:_MAX_LINE_LENGTH] else None
        if match is not None:
            alone = not line[: match.start()].strip()
            if alone and code <= number:  # otherwise comment lines follow each other, and apply to the same line
                code = _next_code(lines, number, signs)
            about = code if alone and code <= len(lines) else number
            names = tuple(dict.fromkeys(name for name in _SEPARATOR.split(match.group(2) or "") if name))[:_MAX_NAMES]
            span = places.span(offset + match.start(), offset + len(line.rstrip("\r")))
            speaks_of = _continued_lines(lines, about)
            comments += 1
            if comments > _MAX_COMMENTS or len(found) + len(speaks_of) > _MAX_LINES:
                # This comment names no rule, so it suppresses nothing and is reported.
                found.append(Suppression(file.path, number, (), match.group(3).strip(), span))
                return tuple(found)
            found.extend(Suppression(file.path, each, names, match.group(3).strip(), span) for each in speaks_of)
        offset += len(line) + 1
    return tuple(found)


def _mark(line: str, signs: tuple[str, ...]) -> re.Match[str] | None:
    """The comment on a line, unless it is in a string."""
    match = next((found for found in _MARK.finditer(line[:_MAX_LINE_LENGTH]) if found.group(1) in signs), None)
    return None if match is None or _is_quoted(line, match.start(), signs) else match


def _next_code(lines: list[str], number: int, signs: tuple[str, ...]) -> int:
    """The first line after line `number` that is code; one after the last if there is none."""
    for index in range(number, len(lines)):
        stripped = lines[index].strip()
        # A scheduler directive is a comment to the shell and often the subject of a finding.
        if stripped and (not stripped.startswith(signs) or stripped.startswith(_DIRECTIVES)):
            return index + 1
    return len(lines) + 1


def _continued_lines(lines: list[str], number: int) -> list[int]:
    """Line `number`, then the other lines of the command it belongs to, joined by backslashes at their ends."""
    first = last = number
    while first > 1 and lines[first - 2].rstrip("\r").endswith("\\"):
        first -= 1
    while last < len(lines) and lines[last - 1].rstrip("\r").endswith("\\"):
        last += 1
    return [number, *(each for each in range(first, last + 1) if each != number)]


def _is_quoted(line: str, at: int, signs: tuple[str, ...]) -> bool:
    """Whether the character at `at` is inside a string that began on this line."""
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
        elif line.startswith(signs, index) and (index == 0 or line[index - 1] in " \t;"):
            return False
        index += 1
    return bool(quote)
