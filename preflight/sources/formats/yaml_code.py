"""Code in a YAML scalar, with the location of each of its characters in the file.

The value of a scalar differs from its source: quotes, escapes, indentation and folded lines are gone. The claims of a
launch line must still point at the characters that the user typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.sources.formats.structured import Node
from preflight.sources.shell.shell_document import FileText, Hole, Lit, Piece, Place, Text

#: Also `${{inputs.name}}` of pipelines, whose dollar belongs to the placeholder.
_TEMPLATE = re.compile(r"\$?\{\{.{0,400}?\}\}|\{%.{0,400}?%\}|<%.{0,400}?%>", re.DOTALL)
_HEADER = re.compile(r"[|>](?:[0-9][+-]?|[+-][0-9]?)?[ \t]*(?:#[^\n]*)?\r?\n?")
_ESCAPE = re.compile(r"\\(?:\r?\n[ \t]*|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)|[ \t]*\r?\n\s*", re.DOTALL)
_FOLD = re.compile(r"[ \t]*\r?\n\s*")
_QUOTE = re.compile(r"''|[ \t]*\r?\n\s*")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "_": "\xa0"}


def code_of(file: FileText, node: Node) -> Text:
    """The characters of a scalar, each with its location; a placeholder becomes a gap."""
    return tuple(_with_gaps(file, _pieces(file, node)))


def _pieces(file: FileText, node: Node) -> Iterator[Lit]:
    source = file.text[node.start : node.end]
    if source[:1] in ("|", ">") and (header := _HEADER.match(source)) is not None:
        yield from _block(file, node.start + header.end(), node.end, folded=source[0] == ">")
    elif source[:1] == '"' and source[-1:] == '"' and len(source) > 1:
        yield from _replace(file, node.start + 1, node.end - 1, _ESCAPE)
    elif source[:1] == "'" and source[-1:] == "'" and len(source) > 1:
        yield from _replace(file, node.start + 1, node.end - 1, _QUOTE)
    else:
        yield from _replace(file, node.start, node.end, _FOLD)


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


def _replace(file: FileText, start: int, end: int, pattern: re.Pattern[str]) -> Iterator[Lit]:
    """Split a range of a file: text that stays as it is, and what each escape or folded line stands for."""
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
    # A folded line: a single line end becomes a blank, of several the first is dropped.
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
