"""Finds placeholders that the user must still replace: `MASTER_ADDR=<ip of node 0>`.

A shell reads `<` and `>` as redirections and stops with a syntax error, and so does the parser, which would lose the
rest of the script. Each placeholder is an unknown piece of text instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.sources.shell.shell_document import Document, FileText, Hole, Lit, Piece, Place, Text

_PLACEHOLDER = re.compile(r"(?<![<>\w&$(])<([A-Za-z](?:[\w .,:/|'()-]*[\w.')])?)>(?=[\s\"';,:./)\\]|$)")
#: Characters that a redirection cannot follow: `NAME=<value>`, `host:<port>`.
_INSIDE_A_WORD = frozenset("=:/@,+-")
#: Text that only a placeholder contains: several words, or a name in capitals or with hyphens.
_NOT_A_FILE = re.compile(r"[ A-Z_|']|\w-\w")
#: Placeholders in one file that are read as such.
_MAX_PIECES = 200


def document_of(path: str, text: str) -> Document:
    """Return the document of a script, with a hole for each placeholder."""
    whole = Place(FileText(path, text), 0, len(text))
    return Document(_pieces(text, whole), whole)


def without_placeholders(text: Text) -> Text:
    """Code that was put together from variables (`eval $CMD`), with a hole for each placeholder in a value."""
    pieces: list[Piece] = []
    for piece in text:
        if not isinstance(piece, Lit):
            pieces.append(piece)
            continue
        end = 0
        for start, stop in _spans(piece.text):
            if start > end:
                pieces.append(piece.cut(end, start))
            inside = piece.cut(start, stop)
            pieces.append(Hole(f"`{inside.text}`, which must be replaced", inside.place, inside.spelling))
            end = stop
            if len(pieces) > _MAX_PIECES:
                break
        if end < len(piece.text):
            pieces.append(piece.cut(end, len(piece.text)))
    return tuple(pieces)


def _pieces(text: str, whole: Place) -> Text:
    pieces: list[Lit | Hole] = []
    end = 0
    for start, stop in _spans(text):
        place = Place(whole.file, start, stop)
        if start > end:
            pieces.append(Lit(text[end:start], Place(whole.file, end, start)))
        pieces.append(Hole(f"`{text[start:stop]}`, which must be replaced", place, text[start:stop]))
        end = stop
        if len(pieces) > _MAX_PIECES:
            break
    if not pieces:
        return (Lit(text, whole),)
    return (*pieces, Lit(text[end:], Place(whole.file, end, len(text))))


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for match in _PLACEHOLDER.finditer(text):
        start, stop = match.span()
        before = text[text.rfind("\n", 0, start) + 1 : start]
        if before.lstrip().startswith("#") or before.count('"') % 2 or before.count("'") % 2:
            continue
        inside_word = before[-1:] in _INSIDE_A_WORD
        at_line_end = text[stop : stop + 2].strip(" \\") in ("", "\n") or text[stop : stop + 1] == "\n"
        if inside_word or at_line_end or ("." not in match[1] and _NOT_A_FILE.search(match[1])):
            yield start, stop
