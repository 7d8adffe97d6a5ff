"""`$NAME`, `${NAME:-default}`, `${A[@]}` and the other parameter expansions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight.sources.shell import arithmetic, patterns
from preflight.sources.shell import expand as words
from preflight.sources.shell.document import Alt, Document, Hole, Place, Text
from preflight.sources.shell.lookup import look_up
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import Kind, Slot, State, element_of
from preflight.sources.shell.symbols import ALLOCATED_HOSTS, Symbol
from preflight.sources.shell.text import (
    Field,
    Part,
    at_site,
    hole,
    is_empty,
    join_texts,
    known,
    literal,
    mapped,
    options,
    reasons,
    spelling_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_HEAD = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!0-])(\[)?")
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//|/#|/%|/|\^\^?|,,?|@[A-Za-z]|:")
OUTSIDE = "from outside"


@dataclass(frozen=True, slots=True)
class _Use:
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


def expand(machine: Machine, state: State, document: Document, node: Node, *, quoted: bool) -> list[Part]:
    """The parts that `$NAME` or `${...}` comes to."""
    use = _read(document, node, quoted=quoted)
    if use is None:
        place = document.at(node)
        return words.unknown(
            "an expansion that is not understood", place, document.of(node).strip(), quoted=quoted
        )
    if use.name in ("@", "*") and use.prefix != "#":
        return _all_arguments(machine, state, use)
    if use.index in ("@", "*") or (use.prefix == "!" and use.name.endswith("*")):
        return _whole_array(machine, state, use)
    return words.as_parts(_scalar(machine, state, use), quoted=quoted)


def _read(document: Document, node: Node, *, quoted: bool) -> _Use | None:
    source = document.text
    start = document.start_of(node)
    end = node.end_byte
    place = document.place(start, end)
    spelling = source[start:end]
    if not spelling.startswith("${"):
        name = spelling[1:]
        return _Use(document, node, place, spelling, name, "", "", 0, "", end, end, quoted) if name else None
    end = end - 1 if spelling.endswith("}") else end
    at = start + 2
    if source[at:end] in ("#", "@", "*", "?", "!", "-", "$"):
        return _Use(document, node, place, spelling, source[at:end], "", "", 0, "", end, end, quoted)
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
    return _Use(
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


def _argument(machine: Machine, state: State, use: _Use, *, escapes: str | None = None) -> list[Part]:
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


def argument_text(machine: Machine, state: State, use: _Use) -> Text:
    """The operand of an expansion, unsplit."""
    return tuple(part.piece for part in _argument(machine, state, use) if part.piece is not None)


def _pattern(machine: Machine, state: State, use: _Use) -> str | None:
    """The operand of a pattern operator, its backslashes kept; None when it is not known."""
    parts = _argument(machine, state, use, escapes="")
    return known(tuple(part.piece for part in parts if part.piece is not None))


def _scalar(machine: Machine, state: State, use: _Use) -> Text:
    if use.prefix == "#" or (use.name == "#" and not use.operator):
        return _length(machine, state, use)
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


def _element(machine: Machine, state: State, use: _Use, slot: Slot) -> Text:
    if slot.kind is Kind.MAP:
        key = _key(machine, state, use)
        if key is None:
            return hole(f"${use.name}[{use.index}] depends on its key", use.place, use.spelling)
        return dict(slot.pairs).get(key, ())
    position = arithmetic.evaluate_text(machine, state, use.index, use.place)
    number = known(position)
    items = (
        slot.items if slot.kind is Kind.ARRAY else (Field(slot.scalar(), use.place, _is_list(slot.scalar())),)
    )
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


def _key(machine: Machine, state: State, use: _Use) -> str | None:
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


def _length(machine: Machine, state: State, use: _Use) -> Text:
    if use.name in ("#", "@", "*"):
        fields = state.positional.fields
        if fields is None or any(item.many for item in fields):
            return hole(f"the number of arguments of {state.positional.owner}", use.place, use.spelling)
        return literal(str(len(fields)), use.place, use.spelling)
    slot = look_up(machine, state, use.name, use.place, use.spelling)
    if use.index not in ("@", "*"):
        return mapped(slot.scalar(), lambda item: str(len(item)), use.place, use.spelling)
    if slot.kind is Kind.MAP:
        return literal(str(len(slot.pairs)), use.place, use.spelling)
    if slot.kind is Kind.ARRAY:
        if not any(item.many for item in slot.items):
            return literal(str(len(slot.items)), use.place, use.spelling)
        if len(slot.items) == 1 and reasons(slot.items[0].text) == ALLOCATED_HOSTS:
            from preflight.sources.shell.lookup import allocated_nodes

            return allocated_nodes(machine, state, use.place, use.spelling)
        return hole(f"the number of elements of ${use.name}", use.place, use.spelling)
    if slot.kind is Kind.UNSET:
        return literal("0", use.place, use.spelling)
    return hole(f"the number of elements of ${use.name}", use.place, use.spelling)


def _operated(machine: Machine, state: State, use: _Use, slot: Slot, current: Text) -> Text:
    sign = use.operator
    if sign.lstrip(":") in ("-", "=", "?", "+"):
        return _conditional(machine, state, use, slot, current)
    if sign == ":":
        return _substring(machine, state, use, current)
    if sign.startswith("@"):
        return at_site(current, use.place, use.spelling)
    operand = _pattern(machine, state, use)
    if operand is None:
        return hole(f"{use.spelling} depends on its pattern", use.place, use.spelling)
    machine.step(20)
    try:
        return mapped(current, lambda item: patterns.apply(sign, item, operand), use.place, use.spelling)
    except ValueError as error:
        return hole(f"{use.spelling} is {error}", use.place, use.spelling)


def _conditional(machine: Machine, state: State, use: _Use, slot: Slot, current: Text) -> Text:
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
        return (
            used
            if missing is None
            else hole(f"${use.name} must be set from outside", use.place, use.spelling)
        )
    default = argument_text(machine, state, use)
    if missing is True:
        if sign == "=":
            state.put(use.name, Slot(Kind.TEXT, use.place, default))
        return default
    outside = [piece for piece in current if isinstance(piece, Hole)]
    if outside and outside[0].why.endswith("comes from outside"):
        shown = spelling_of(default)
        known_default = options(default)
        single = known_default is not None and all(
            item and not re.search(r"\s", item) for item in known_default
        )
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


def _either(current: Text, default: Text, use: _Use) -> Text:
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


def _substring(machine: Machine, state: State, use: _Use, current: Text) -> Text:
    bounds = _bounds(machine, state, use)
    if bounds is None:
        return hole(f"a part of ${use.name}", use.place, use.spelling)
    return mapped(current, lambda item: patterns.substring(item, *bounds), use.place, use.spelling)


def _bounds(machine: Machine, state: State, use: _Use) -> tuple[int, int | None] | None:
    raw = use.document.text[use.argument : use.end]
    offset, _, length = raw.partition(":")
    first = known(arithmetic.evaluate_text(machine, state, offset or "0", use.place))
    last = known(arithmetic.evaluate_text(machine, state, length, use.place)) if length else ""
    if first is None or last is None:
        return None
    return int(first), int(last) if last else None


def _all_arguments(machine: Machine, state: State, use: _Use) -> list[Part]:
    fields = state.positional.fields
    if fields is None:
        why = f"the arguments of {state.positional.owner}"
        return [Part(Hole(why, use.place, use.spelling, True), split=True, split_before=use.quoted)]
    if use.operator == ":" and (bounds := _bounds(machine, state, use)) is not None:
        # ${@:1} starts at $1; index 0 is the script itself.
        fields = _sliced(fields, max(bounds[0] - 1, 0), bounds[1])
    return _spread(fields, use, star=use.name == "*")


def _whole_array(machine: Machine, state: State, use: _Use) -> list[Part]:
    if use.prefix == "#":
        return words.as_parts(_length(machine, state, use), quoted=use.quoted)
    slot = look_up(machine, state, use.name, use.place, use.spelling)
    items = _items(slot, use)
    if use.prefix == "!":
        if slot.kind is Kind.MAP:
            items = tuple(Field(literal(key, use.place), use.place) for key, _ in slot.pairs)
        elif any(item.many for item in items):
            return words.unknown(f"the indices of ${use.name}", use.place, use.spelling, quoted=False)
        else:
            items = tuple(Field(literal(str(n), use.place), use.place) for n in range(len(items)))
    sign = use.operator
    if sign.lstrip(":") in ("-", "=", "+", "?") and sign:
        empty = not items
        if (sign[-1] == "+") == empty:
            return [] if sign[-1] == "+" else _spread(items, use, star=use.index == "*")
        if sign[-1] == "+" or empty:
            return _argument(machine, state, use)
    elif sign == ":" and (bounds := _bounds(machine, state, use)) is not None:
        items = _sliced(items, *bounds)
    elif sign and not sign.startswith("@"):
        operand = _pattern(machine, state, use)
        if operand is None:
            return words.unknown(
                f"{use.spelling} depends on its pattern", use.place, use.spelling, quoted=False
            )
        machine.step(20 * len(items))
        try:
            items = tuple(
                Field(
                    mapped(i.text, lambda t: patterns.apply(sign, t, operand), i.place, spelling_of(i.text)),
                    i.place,
                    i.many,
                )
                for i in items
            )
        except ValueError as error:
            return words.unknown(f"{use.spelling} is {error}", use.place, use.spelling, quoted=False)
    return _spread(items, use, star=use.index == "*")


def _items(slot: Slot, use: _Use) -> tuple[Field, ...]:
    if slot.kind is Kind.ARRAY:
        return slot.items
    if slot.kind is Kind.MAP:
        return tuple(Field(value, use.place) for _, value in slot.pairs)
    if slot.kind is Kind.UNSET:
        return ()
    return (
        Field(
            slot.text, use.place, len(slot.text) == 1 and isinstance(slot.text[0], Hole) and slot.text[0].many
        ),
    )


def _sliced(items: tuple[Field, ...], first: int, length: int | None) -> tuple[Field, ...]:
    if any(item.many for item in items[:-1]) and first:
        return items
    return items[first : None if length is None else max(first + length, 0)]


def _spread(items: Sequence[Field], use: _Use, *, star: bool) -> list[Part]:
    if star and use.quoted:
        pieces: list[Part] = []
        for number, item in enumerate(items):
            if number:
                pieces.append(Part(literal(" ", use.place, " ")[0]))
            pieces.extend(Part(piece) for piece in item.text)
        return pieces or [Part(None)]
    parts: list[Part] = []
    for number, item in enumerate(items):
        split = item.many or not use.quoted
        if not item.text:
            if use.quoted:
                parts.append(Part(None, False, number > 0))
                parts.append(Part(literal("", item.place, "")[0]))
            continue
        for at, piece in enumerate(item.text):
            parts.append(Part(piece, split=split, split_before=at == 0 and number > 0))
    return parts
