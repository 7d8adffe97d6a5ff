"""Assignments, `export`, `declare`, `local`, `readonly`, `unset`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight.lazy.patterns import lazy_pattern
from preflight.sources.shell import arithmetic, expand
from preflight.sources.shell.document import Document, Place, Text
from preflight.sources.shell.lookup import look_up
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import Flow, Kind, Slot, State
from preflight.sources.shell.text import Field, after, bounded, hole, known, strings

if TYPE_CHECKING:
    from tree_sitter import Node

_KEYED = lazy_pattern(r"\[([^\]\s]+)\]=(.*)", re.DOTALL)
_NAME = lazy_pattern(r"[A-Za-z_]\w*")
_ASSIGNED = lazy_pattern(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
MOST_ELEMENTS = 2_000


def assign(machine: Machine, state: State, document: Document, node: Node) -> Flow:
    """Carry out `NAME=value` in any of its forms."""
    named = evaluated(machine, state, document, node)
    if named is not None:
        name, slot = named
        state.put(name, slot)
    return Flow.NEXT


def evaluated(machine: Machine, state: State, document: Document, node: Node) -> tuple[str, Slot] | None:
    """The name an assignment sets and what it will hold; nothing is set yet."""
    target = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    if target is None:
        return None
    place = document.at(node)
    appends = any(child.type == "+=" for child in node.children)
    if target.type == "subscript":
        return _element(machine, state, document, node, target, value, appends=appends)
    name = document.of(target).strip()
    if value is not None and value.type == "array":
        return name, _array(machine, state, document, name, value, place, appends=appends)
    text = expand.text(machine, state, document, value) if value is not None else ()
    return name, _scalar(machine, state, name, text, place, appends=appends)


def _scalar(machine: Machine, state: State, name: str, text: Text, place: Place, *, appends: bool) -> Slot:
    if not appends:
        return Slot(Kind.TEXT, place, text)
    old = look_up(machine, state, name, place, f"${name}")
    if old.kind is Kind.ARRAY:
        items = old.items
        if items:
            items = (replace(items[0], text=items[0].text + text), *items[1:])
        return Slot(Kind.ARRAY, place, items=items)
    return Slot(Kind.TEXT, place, bounded(old.scalar() + text, place, f"${name}"))


def _array(
    machine: Machine, state: State, document: Document, name: str, node: Node, place: Place, *, appends: bool
) -> Slot:
    items = expand.fields(machine, state, document, [c for c in node.named_children if c.type != "comment"])
    machine.step(len(items) // 4)
    old = state.get(name)
    plain = strings(items)
    if (old is not None and old.kind is Kind.MAP) or (plain and all(_KEYED.fullmatch(item) for item in plain)):
        pairs = dict(old.pairs) if old is not None and old.kind is Kind.MAP and appends else {}
        for item in items:
            keyed = _KEYED.fullmatch(item.known or "")
            if keyed is not None:
                pairs[keyed.group(1)] = after(item.text, len(item.known or "") - len(keyed.group(2)))
        return Slot(Kind.MAP, place, pairs=tuple(pairs.items()))
    if appends and old is not None and old.is_set:
        before = old.items if old.kind is Kind.ARRAY else (Field(old.text, old.place),)
        return Slot(Kind.ARRAY, place, items=(*before, *items)[:MOST_ELEMENTS])
    return Slot(Kind.ARRAY, place, items=tuple(items[:MOST_ELEMENTS]))


def _element(
    machine: Machine,
    state: State,
    document: Document,
    node: Node,
    target: Node,
    value: Node | None,
    *,
    appends: bool,
) -> tuple[str, Slot] | None:
    base, index = target.child_by_field_name("name"), target.child_by_field_name("index")
    if base is None or index is None:
        return None
    name, place = document.of(base), document.at(node)
    text = expand.text(machine, state, document, value) if value is not None else ()
    old = state.get(name)
    key = known(expand.text(machine, state, document, index))
    if old is not None and old.kind is Kind.MAP:
        if key is None:
            return name, Slot(Kind.TEXT, place, hole(f"${name} has keys nobody knows", place, f"${name}", many=True))
        pairs = dict(old.pairs)
        pairs[key] = pairs.get(key, ()) + text if appends else text
        return name, Slot(Kind.MAP, place, pairs=tuple(pairs.items()))
    number = known(arithmetic.evaluate_text(machine, state, key, place)) if key is not None else None
    items = old.items if old is not None and old.kind is Kind.ARRAY else ()
    if key is not None and old is None and _NAME.fullmatch(key) and state.get(key) is None:
        return name, Slot(Kind.MAP, place, pairs=((key, text),))
    at = int(number) if number is not None else -1
    if number is None or not 0 <= at <= len(items) or any(item.many for item in items[: at + 1]):
        rest = hole(f"${name}[{document.of(index)}] is set at run time", place, document.of(node), many=True)
        return name, Slot(Kind.ARRAY, place, items=(*items[: max(at, 0)], Field(rest, place, True)))
    item = Field(items[at].text + text if appends and at < len(items) else text, place)
    return name, Slot(Kind.ARRAY, place, items=(*items[:at], item, *items[at + 1 :]))


def declare(machine: Machine, state: State, document: Document, node: Node) -> None:
    """Carry out `export`, `declare`, `typeset`, `local`, `readonly` or `unset`."""
    keyword = document.of(node).split(None, 1)[0]
    flags = ""
    names: list[tuple[str, Slot | None]] = []
    for child in node.children[1:]:
        if not child.is_named or child.type == "comment":
            continue
        if child.type == "variable_assignment":
            if "A" in flags and "=" in document.of(child):
                target = child.child_by_field_name("name")
                if target is not None and state.get(document.of(target)) is None:
                    state.put(document.of(target), Slot(Kind.MAP, document.at(child)))
            found = evaluated(machine, state, document, child)
            if found is not None:
                names.append(found)
            continue
        for item in expand.fields(machine, state, document, (child,)):
            word = item.known
            if word is None:
                continue
            assigned = _ASSIGNED.fullmatch(word)
            if word.startswith(("-", "+")):
                flags += word
            elif assigned is not None:
                text = after(item.text, len(word) - len(assigned.group(3)))
                slot = _scalar(machine, state, assigned.group(1), text, item.place, appends=bool(assigned.group(2)))
                names.append((assigned.group(1), slot))
            elif _NAME.fullmatch(word):
                names.append((word, None))
    _carry_out(state, document.at(node), keyword, flags, names)


def _carry_out(state: State, place: Place, keyword: str, flags: str, names: list[tuple[str, Slot | None]]) -> None:
    if keyword in ("unset", "unsetenv"):
        for name, _ in names:
            if "f" in flags:
                state.functions.pop(name, None)
            else:
                state.drop(name, place)
        return
    if "f" in flags or "p" in flags:
        return
    is_local = keyword == "local" or (keyword in ("declare", "typeset") and state.locals and "g" not in flags)
    exports = keyword == "export" or ("x" in flags and "+" not in flags)
    for name, slot in names:
        if is_local and state.locals:
            state.locals[-1].setdefault(name, state.get(name))
        if slot is not None:
            # A local that hides no variable starts afresh; one that does keeps being exported if that was.
            if is_local and "A" not in flags and state.locals and state.locals[-1].get(name) is None:
                state.variables.pop(name, None)
            state.put(name, slot)
        elif is_local or (keyword in ("declare", "typeset") and state.get(name) is None):
            kind = Kind.MAP if "A" in flags else Kind.ARRAY if "a" in flags else Kind.UNSET
            if is_local or kind is not Kind.UNSET:
                state.put(name, Slot(kind, place))
        if exports:
            if state.get(name) is None:
                state.put(name, state.outside(name, place, f"${name}"))
            state.export(name, place, exported="n" not in flags)
