"""One `$NAME` or `${...}` as written: its name, index and operator, and what its operand comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.shell import arithmetic
from preflight.sources.shell import expand as words
from preflight.sources.shell.document import Document, Place, Text
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import State
from preflight.sources.shell.text import Part, known

if TYPE_CHECKING:
    from tree_sitter import Node

_HEAD = lazy_pattern(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!0-])(\[)?")
_OPERATOR = lazy_pattern(r":[-=?+]|[-=?+]|##?|%%?|//|/#|/%|/|\^\^?|,,?|@[A-Za-z]|:")


@dataclass(frozen=True, slots=True)
class Use:
    """One expansion as written."""

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


def read(document: Document, node: Node, *, quoted: bool) -> Use | None:
    """Take an expansion apart; None where it is not understood."""
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
        close = _closing(source, at, end)
        index, index_start, at = source[at:close], at, min(close + 1, end)
    operator = _OPERATOR.match(source, at, end)
    sign = operator.group() if operator else ""
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
        sign,
        argument,
        end,
        quoted,
    )


def _closing(source: str, at: int, end: int) -> int:
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


def argument(machine: Machine, state: State, use: Use, *, escapes: str | None = None) -> list[Part]:
    """The operand of an expansion, in parts. `escapes` names what a backslash protects, None for the usual."""
    return words.between(
        machine,
        state,
        use.document,
        use.node.children,
        use.argument,
        use.end,
        quoted=use.quoted,
        escapes=escapes,
    )


def argument_text(machine: Machine, state: State, use: Use) -> Text:
    """The operand of an expansion, unsplit."""
    return tuple(part.piece for part in argument(machine, state, use) if part.piece is not None)


def pattern(machine: Machine, state: State, use: Use) -> str | None:
    """The operand of a pattern operator, its backslashes kept; None when it is not known."""
    parts = argument(machine, state, use, escapes="")
    return known(tuple(part.piece for part in parts if part.piece is not None))


def bounds(machine: Machine, state: State, use: Use) -> tuple[int, int | None] | None:
    """Offset and length of `${A:offset:length}`; None when one of them is not known."""
    raw = use.document.text[use.argument : use.end]
    offset, _, length = raw.partition(":")
    first = known(arithmetic.evaluate_text(machine, state, offset or "0", use.place))
    last = known(arithmetic.evaluate_text(machine, state, length, use.place)) if length else ""
    if first is None or last is None:
        return None
    return int(first), int(last) if last else None
