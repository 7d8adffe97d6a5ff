"""Code that stands in a YAML scalar: which character of it stands where in the file.

The value of a scalar is not its source: quotes, escapes, indentation and folded lines are gone. What a launch line
claims must still point at the characters that the user typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.lazy.patterns import lazy_pattern
from preflight.sources.shell.document import FileText, Hole, Lit, Piece, Place, Text
from preflight.sources.structured import Node

_TEMPLATE = lazy_pattern(r"\{\{.{0,400}?\}\}|\{%.{0,400}?%\}|<%.{0,400}?%>", re.DOTALL)
_HEADER = lazy_pattern(r"[|>](?:[0-9][+-]?|[+-][0-9]?)?[ \t]*(?:#[^\n]*)?\r?\n?")
_ESCAPE = lazy_pattern(r"\\(?:\r?\n[ \t]*|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)|[ \t]*\r?\n\s*", re.DOTALL)
_FOLD = lazy_pattern(r"[ \t]*\r?\n\s*")
_QUOTE = lazy_pattern(r"''|[ \t]*\r?\n\s*")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "_": "\xa0"}


def code_of(file: FileText, node: Node) -> Text:
    """The characters a scalar holds, each with its place; a placeholder is a gap that nobody can fill yet."""
    return tuple(_with_gaps(file, _pieces(file, node)))


def _pieces(file: FileText, node: Node) -> Iterator[Lit]:
    source = file.text[node.start : node.end]
    if source[:1] in ("|", ">") and (header := _HEADER.match(source)) is not None:
        yield from _block(file, node.start + header.end(), node.end, folded=source[0] == ">")
    elif source[:1] == '"' and source[-1:] == '"' and len(source) > 1:
        yield from _replaced(file, node.start + 1, node.end - 1, _ESCAPE)
    elif source[:1] == "'" and source[-1:] == "'" and len(source) > 1:
        yield from _replaced(file, node.start + 1, node.end - 1, _QUOTE)
    else:
        yield from _replaced(file, node.start, node.end, _FOLD)


def _block(file: FileText, start: int, end: int, *, folded: bool) -> Iterator[Lit]:
    """The lines of `|` or `>` without their common indentation."""
    lines = file.text[start:end].split("\n")
    indent = next((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), 0)
    offset = start
    for number, line in enumerate(lines):
        bare = line.rstrip("\r")
        content = bare[indent:] if bare[:indent].strip(" ") == "" else ""
        if bare.strip() and len(bare) - len(bare.lstrip(" ")) < indent and not _TEMPLATE.fullmatch(bare.strip()):
            return
        whole_line = _TEMPLATE.fullmatch(bare.strip()) is not None
        if content and not whole_line:
            yield Lit(content, Place(file, offset + indent, offset + len(bare)))
        if number + 1 < len(lines):
            at = offset + len(line)
            following = lines[number + 1].rstrip("\r")[indent:]
            joins = folded and bool(content) and bool(following) and not following.startswith((" ", "\t"))
            yield Lit(" " if joins else "\n", Place(file, at, at + 1))
        offset += len(line) + 1


def _replaced(file: FileText, start: int, end: int, pattern: re.Pattern[str]) -> Iterator[Lit]:
    """Stretches as they stand, and between them what escapes and folded lines come to."""
    at = start
    for match in pattern.finditer(file.text, start, end):
        if match.start() > at:
            yield Lit(file.text[at : match.start()], Place(file, at, match.start()))
        text = _meaning(match[0])
        if text:
            yield Lit(text, Place(file, match.start(), match.end()), exact=len(text) == 1)
        at = match.end()
    if at < end:
        yield Lit(file.text[at:end], Place(file, at, end))


def _meaning(written: str) -> str:
    if written == "''":
        return "'"
    if written.startswith("\\"):
        if written[1:2] in ("\n", "\r"):
            return ""
        if written[1] in "xu" and len(written) > 2:
            return chr(int(written[2:], 16))
        return _ESCAPED.get(written[1], written[1])
    # A folded line: one line end is a blank, of several the first goes.
    return "\n" * (written.count("\n") - 1) or " "


def _with_gaps(file: FileText, pieces: Iterator[Lit]) -> Iterator[Piece]:
    for piece in pieces:
        at = 0
        for match in _TEMPLATE.finditer(piece.text) if piece.exact else ():
            if match.start() > at:
                yield piece.cut(at, match.start())
            place = Place(file, piece.place.start + match.start(), piece.place.start + match.end())
            yield Hole(f"{match[0][:60]} is filled in later", place, match[0], many=True)
            at = match.end()
        if at < len(piece.text):
            yield piece.cut(at, len(piece.text))
