"""`$NAME`, `${NAME:-default}`, `${NAME%suffix}`, `${A[2]}`: the parameter expansions of one value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from preflight.job.symbols import ALLOCATED_HOSTS, Symbol
from preflight.sources.shell import arithmetic, patterns
from preflight.sources.shell import expand as words
from preflight.sources.shell.arrays import all_arguments, length, whole_array
from preflight.sources.shell.document import Alt, Document, Hole, Text
from preflight.sources.shell.lookup import look_up
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import Kind, Slot, State, element_of
from preflight.sources.shell.text import (
    Field,
    Part,
    at_site,
    hole,
    is_empty,
    join_texts,
    known,
    mapped,
    options,
    reasons,
    spelling_of,
)
from preflight.sources.shell.usage import Use, argument_text, bounds, pattern, read

if TYPE_CHECKING:
    from tree_sitter import Node

OUTSIDE = "from outside"


def expand(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool) -> list[Part]:
    """The parts that `$NAME` or `${...}` comes to."""
    use = read(document, node, quoted=quoted)
    if use is None:
        place = document.at(node)
        return words.unknown("an expansion that is not understood", place, document.of(node).strip(), quoted=quoted)
    if use.name in ("@", "*") and use.prefix != "#":
        return all_arguments(machine, state, use)
    if use.index in ("@", "*") or (use.prefix == "!" and use.name.endswith("*")):
        return whole_array(machine, state, use)
    return words.as_parts(_scalar(machine, state, use), quoted=quoted)


def _scalar(machine: Machine, state: State, use: Use) -> Text:
    if use.prefix == "#" or (use.name == "#" and not use.operator):
        return length(machine, state, use)
    if use.prefix == "!":
        target = known(look_up(machine, state, use.name, use.place, use.spelling).scalar())
        if target is None or not re.fullmatch(r"\w+", target):
            return hole(f"the variable that ${use.name} names", use.place, use.spelling)
        slot = look_up(machine, state, target, use.place, use.spelling)
        current = slot.scalar()
    else:
        slot = look_up(machine, state, use.name, use.place, use.spelling)
        current = _element(machine, state, use, slot) if use.index else slot.scalar()
    if not use.operator:
        return at_site(current, use.place, use.spelling)
    return _operated(machine, state, use, slot, current)


def _element(machine: Machine, state: State, use: Use, slot: Slot) -> Text:
    if slot.kind is Kind.MAP:
        key = _key(machine, state, use)
        if key is None:
            return hole(f"${use.name}[{use.index}] depends on its key", use.place, use.spelling)
        return dict(slot.pairs).get(key, ())
    position = arithmetic.evaluate_text(machine, state, use.index, use.place)
    number = known(position)
    items = slot.items if slot.kind is Kind.ARRAY else (Field(slot.scalar(), use.place, _is_list(slot.scalar())),)
    if slot.kind is Kind.UNSET:
        return ()
    if number is None:
        why = f"element [{use.index}] of ${use.name}: {reasons(position)}"
        hosts = bool(items) and all(item.many and reasons(item.text) == ALLOCATED_HOSTS for item in items)
        if hosts and any(symbol.value in why for symbol in (Symbol.NODE_RANK, Symbol.PROCESS_RANK)):
            return hole(Symbol.THIS_HOST.value, use.place, use.spelling)
        return hole(why, use.place, use.spelling)
    at = int(number)
    if at < 0:
        if any(item.many for item in items) or -at > len(items):
            return hole(f"element [{at}] of ${use.name}", use.place, use.spelling)
        return items[at].text
    for item in items:
        if item.many:
            return element_of(item, at)
        if at == 0:
            return item.text
        at -= 1
    return ()


def _is_list(text: Text) -> bool:
    return len(text) == 1 and isinstance(text[0], Hole) and text[0].why.endswith("comes from outside")


def _key(machine: Machine, state: State, use: Use) -> str | None:
    pieces = words.between(
        machine,
        state,
        use.document,
        _nodes(use.node),
        use.index_start,
        use.index_start + len(use.index),
        quoted=True,
    )
    return known(tuple(part.piece for part in pieces if part.piece is not None))


def _nodes(node: Node) -> list[Node]:
    found: list[Node] = []
    for child in node.children:
        found.extend(child.children if child.type == "subscript" else (child,))
    return found


def _operated(machine: Machine, state: State, use: Use, slot: Slot, current: Text) -> Text:
    sign = use.operator
    if sign.lstrip(":") in ("-", "=", "?", "+"):
        return _conditional(machine, state, use, slot, current)
    if sign == ":":
        return _substring(machine, state, use, current)
    if sign.startswith("@"):
        return at_site(current, use.place, use.spelling)
    operand = pattern(machine, state, use)
    if operand is None:
        return hole(f"{use.spelling} depends on its pattern", use.place, use.spelling)
    machine.step(20)
    try:
        return mapped(current, lambda item: patterns.apply(sign, item, operand), use.place, use.spelling)
    except ValueError as error:
        return hole(f"{use.spelling} is {error}", use.place, use.spelling)


def _conditional(machine: Machine, state: State, use: Use, slot: Slot, current: Text) -> Text:
    sign = use.operator[-1]
    with_colon = use.operator.startswith(":")
    used = at_site(current, use.place, use.spelling)
    missing = _is_missing(slot, current, with_colon=with_colon)
    if sign == "+":
        if missing is True:
            return ()
        operand = argument_text(machine, state, use)
        if missing is False:
            return operand
        shown = spelling_of(operand)
        return hole(f"{shown!r} if ${use.name} is set, else nothing", use.place, use.spelling, many=True)
    if missing is False:
        return used
    if sign == "?":
        return used if missing is None else hole(f"${use.name} must be set from outside", use.place, use.spelling)
    default = argument_text(machine, state, use)
    if missing is True:
        if sign == "=":
            state.put(use.name, Slot(Kind.TEXT, use.place, default))
        return default
    outside = [piece for piece in current if isinstance(piece, Hole)]
    if outside and outside[0].why.endswith("comes from outside"):
        shown = spelling_of(default)
        known_default = options(default)
        single = known_default is not None and all(item and not re.search(r"\s", item) for item in known_default)
        why = f"${use.name} {OUTSIDE}, default {shown or 'nothing'}"
        if known_default is None:
            why += f" ({reasons(default)})"
        result = hole(why, use.place, use.spelling, many=not single)
    elif outside:
        result = used
    else:
        result = _either(used, default, use)
    if sign == "=":
        state.put(use.name, Slot(Kind.TEXT, use.place, result))
    return result


def _either(current: Text, default: Text, use: Use) -> Text:
    """Where some alternatives are empty: those give the default."""
    if len(current) == 1 and isinstance(current[0], Alt):
        return join_texts(
            [opt if is_empty(opt) is False else default for opt in current[0].options],
            use.place,
            use.spelling,
        )
    return join_texts([current, default], use.place, use.spelling)


def _is_missing(slot: Slot, current: Text, *, with_colon: bool) -> bool | None:
    if slot.kind is Kind.UNSET:
        return True
    if slot.kind is Kind.ARRAY and not slot.items:
        return True
    if any(isinstance(piece, Hole) and piece.why.endswith("comes from outside") for piece in current):
        return None if len(current) == 1 else False
    if not with_colon:
        return False
    empty = is_empty(current)
    if empty is None and any(isinstance(piece, Hole) for piece in current):
        # A value computed at run time (a host name, a port) is taken to be there.
        return False if not any(isinstance(p, Hole) and p.many for p in current) else None
    return empty


def _substring(machine: Machine, state: State, use: Use, current: Text) -> Text:
    cut = bounds(machine, state, use)
    if cut is None:
        return hole(f"a part of ${use.name}", use.place, use.spelling)
    return mapped(current, lambda item: patterns.substring(item, *cut), use.place, use.spelling)
