"""The syntax of `$NAME` and `${...}`: name, index and operator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.sources.shell.shell_document import Document, Place

if TYPE_CHECKING:
    from tree_sitter import Node

_HEAD = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!0-])(\[)?")
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//|/#|/%|/|\^\^?|,,?|@[A-Za-z]|:")


@dataclass(frozen=True, slots=True)
class Use:
    """One parameter expansion as written.

    Args:
        document: the text it is in.
        node: its syntax node.
        place: its location.
        spelling: its text.
        name: the parameter.
        prefix: `#` for a length, `!` for an indirection, else empty.
        index: the text between `[` and `]`.
        index_start: where the index starts in the document.
        operator: `:-`, `%%`, `//`, ... or empty.
        argument: where the operand starts in the document.
        end: where the operand ends.
        quoted: whether it is in double quotes.
    """

    document: Document
    node: Node
    place: Place
    spelling: str
    name: str
    prefix: str
    index: str
    index_start: int
    operator: str
    argument: int
    end: int
    quoted: bool


def parse_parameter(document: Document, node: Node, *, quoted: bool) -> Use | None:
    """Parse an expansion; None when it is not understood."""
    source = document.text
    start = document.start_of(node)
    end = node.end_byte
    place = document.place(start, end)
    spelling = source[start:end]
    if not spelling.startswith("${"):
        name = spelling[1:]
        return Use(document, node, place, spelling, name, "", "", 0, "", end, end, quoted) if name else None
    end = end - 1 if spelling.endswith("}") else end
    at = start + 2
    if source[at:end] in ("#", "@", "*", "?", "!", "-", "$"):
        return Use(document, node, place, spelling, source[at:end], "", "", 0, "", end, end, quoted)
    head = _HEAD.match(source, at, end)
    if head is None:
        return None
    at = head.end()
    index, index_start = "", 0
    if head.group(3):
        close = _closing_bracket(source, at, end)
        index, index_start, at = source[at:close], at, min(close + 1, end)
    operator = _OPERATOR.match(source, at, end)
    operator_text = operator.group() if operator else ""
    argument = operator.end() if operator else at
    return Use(
        document,
        node,
        place,
        spelling,
        head.group(2),
        head.group(1),
        index,
        index_start,
        operator_text,
        argument,
        end,
        quoted,
    )


def _closing_bracket(source: str, at: int, end: int) -> int:
    depth = 1
    while at < end:
        if source[at] == "[":
            depth += 1
        elif source[at] == "]":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return end
