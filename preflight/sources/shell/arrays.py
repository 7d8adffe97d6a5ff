"""Expansions of several words: `"$@"`, `${A[@]}`, `${!A[@]}`, their slices, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.job.symbols import ALLOCATED_HOSTS
from preflight.sources.shell import expand as words
from preflight.sources.shell import patterns
from preflight.sources.shell.document import Hole, Text
from preflight.sources.shell.lookup import allocated_nodes, look_up
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.text import Field, Part, hole, literal, mapped, reasons, spelling_of
from preflight.sources.shell.usage import Use, argument, bounds, pattern


def all_arguments(machine: Machine, state: State, use: Use) -> list[Part]:
    """`$@` and `$*`: each argument a word of its own, or one hole where they are not known."""
    fields = state.positional.fields
    if fields is None:
        why = f"the arguments of {state.positional.owner}"
        return [Part(Hole(why, use.place, use.spelling, True), split=True, split_before=use.quoted)]
    if use.operator == ":" and (cut := bounds(machine, state, use)) is not None:
        # ${@:1} starts at $1; index 0 is the script itself.
        fields = _sliced(fields, max(cut[0] - 1, 0), cut[1])
    return _spread(fields, use, star=use.name == "*")


def whole_array(machine: Machine, state: State, use: Use) -> list[Part]:
    """`${A[@]}` with any operator, applied to each element; the indices for `${!A[@]}`."""
    if use.prefix == "#":
        return words.as_parts(length(machine, state, use), quoted=use.quoted)
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
            return argument(machine, state, use)
    elif sign == ":" and (cut := bounds(machine, state, use)) is not None:
        items = _sliced(items, *cut)
    elif sign and not sign.startswith("@"):
        operand = pattern(machine, state, use)
        if operand is None:
            return words.unknown(f"{use.spelling} depends on its pattern", use.place, use.spelling, quoted=False)
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


def length(machine: Machine, state: State, use: Use) -> Text:
    """How many arguments or elements there are, or how long one value is."""
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
            return allocated_nodes(machine, state, use.place, use.spelling)
        return hole(f"the number of elements of ${use.name}", use.place, use.spelling)
    if slot.kind is Kind.UNSET:
        return literal("0", use.place, use.spelling)
    return hole(f"the number of elements of ${use.name}", use.place, use.spelling)


def _items(slot: Slot, use: Use) -> tuple[Field, ...]:
    if slot.kind is Kind.ARRAY:
        return slot.items
    if slot.kind is Kind.MAP:
        return tuple(Field(value, use.place) for _, value in slot.pairs)
    if slot.kind is Kind.UNSET:
        return ()
    return (Field(slot.text, use.place, len(slot.text) == 1 and isinstance(slot.text[0], Hole) and slot.text[0].many),)


def _sliced(items: tuple[Field, ...], first: int, length: int | None) -> tuple[Field, ...]:
    if any(item.many for item in items[:-1]) and first:
        return items
    return items[first : None if length is None else max(first + length, 0)]


def _spread(items: Sequence[Field], use: Use, *, star: bool) -> list[Part]:
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
