"""Loops: over known words turn by turn; otherwise the body once, with what it changes unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from preflight.job.value import MOST_ALTERNATIVES
from preflight.sources.shell import arithmetic, control, expand
from preflight.sources.shell.document import Document
from preflight.sources.shell.machine import MOST_NESTED_TURNS, MOST_TURNS, Machine
from preflight.sources.shell.state import Flow, Kind, Positional, Slot, State, join_states
from preflight.sources.shell.text import Field, hole, join_texts, known, reasons

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_VISITED = 20_000


def run_loop(machine: Machine, state: State, document: Document, node: Node) -> control.Result:
    """Run a for, while, until or select loop."""
    body = node.child_by_field_name("body")
    if body is None:
        return Flow.NEXT, None
    if node.type == "for_statement":
        return _for(machine, state, document, node, body)
    conditions = _conditions(machine, state, document, node)
    return _while(machine, state, document, node, body, conditions)


def _for(machine: Machine, state: State, document: Document, node: Node, body: Node) -> control.Result:
    variable = node.child_by_field_name("variable")
    name = document.of(variable) if variable is not None else "_"
    place = document.at(variable if variable is not None else node)
    written = node.children_by_field_name("value")
    if written:
        items = expand.fields(machine, state, document, written)
    elif any(child.type == "in" for child in node.children):
        items = []
    else:
        found = state.positional.fields
        items = list(found) if found is not None else [_unknown_arguments(state, document, node)]
    certain = not any(item.many for item in items)
    if certain and len(items) <= MOST_TURNS and len(items) * math.prod(machine.turns) <= MOST_NESTED_TURNS:
        machine.turns.append(max(len(items), 1))
        try:
            return _turns(machine, state, document, node, body, name, items)
        finally:
            machine.turns.pop()
    if certain and len(items) <= MOST_ALTERNATIVES:
        _widen(state, document, body)
        text = join_texts([item.text for item in items], place, f"${name}")
        state.put(name, Slot(Kind.TEXT, place, text))
        return _once(machine, state, document, node, body)
    why = next((reasons(item.text) for item in items if item.many), f"one of {len(items)} words")
    if len(items) <= MOST_TURNS and any(not item.many for item in items):
        why = f"one of several words of the loop ({why})"
    _widen(state, document, body)
    state.put(name, Slot(Kind.TEXT, place, hole(f"${name} is one of {why}", place, f"${name}")))
    return _once(machine, state, document, node, body)


def _unknown_arguments(state: State, document: Document, node: Node) -> Field:
    place = document.at(node)
    return Field(hole(f"the arguments of {state.positional.owner}", place, "$@", many=True), place, True)


def _turns(
    machine: Machine,
    state: State,
    document: Document,
    node: Node,
    body: Node,
    name: str,
    items: list[Field],
) -> control.Result:
    for item in items:
        machine.step()
        state.put(name, Slot(Kind.TEXT, item.place, item.text))
        flow, _ = control.run_block(machine, state, document, body.children)
        if flow in (Flow.RETURN, Flow.EXIT):
            return flow, None
        if flow is Flow.BREAK:
            break
    return Flow.NEXT, None


def _conditions(machine: Machine, state: State, document: Document, node: Node) -> list[Node]:
    """The nodes of a while loop's condition; for `for ((;;))` its start is carried out here."""
    if node.type == "c_style_for_statement":
        for start in node.children_by_field_name("initializer"):
            if start.is_named:
                arithmetic.evaluate_text(machine, state, document.of(start), document.at(start))
        return [child for child in node.children_by_field_name("condition") if child.is_named]
    return list(node.children_by_field_name("condition"))


def _holds(machine: Machine, state: State, document: Document, node: Node, conditions: list[Node]) -> bool | None:
    if node.type == "c_style_for_statement":
        if not conditions:
            return None
        last = conditions[-1]
        parts = expand.word_parts(machine, state, document, last, quoted=True)
        inner = tuple(part.piece for part in parts if part.piece is not None)
        plain = known(arithmetic.of_text(machine, state, inner, document.at(last), document.of(last)))
        return None if plain is None else plain != "0"
    if _is_endless(document, conditions):
        return None
    _, truth = control.run_block(machine, state, document, conditions)
    if truth is None:
        return None
    return truth != any(child.type == "until" for child in node.children)


def _is_endless(document: Document, conditions: list[Node]) -> bool:
    named = [document.of(child).strip() for child in conditions if child.is_named]
    return named in (["true"], [":"], ["[ 1 ]"], ["((1))"])


def _while(
    machine: Machine, state: State, document: Document, node: Node, body: Node, conditions: list[Node]
) -> control.Result:
    trial = state.copy()
    kept = len(machine.commands)
    most = min(MOST_TURNS, MOST_NESTED_TURNS // math.prod(machine.turns))
    for turn in range(most + 1):
        truth = _holds(machine, trial, document, node, conditions)
        if truth is False:
            state.adopt(trial)
            return Flow.NEXT, None
        if truth is None or turn == most:
            break
        flow, _ = control.run_block(machine, trial, document, body.children)
        if flow in (Flow.RETURN, Flow.EXIT):
            state.adopt(trial)
            return flow, None
        if flow is Flow.BREAK:
            state.adopt(trial)
            return Flow.NEXT, None
        for update in node.children_by_field_name("update"):
            if update.is_named:
                arithmetic.evaluate_text(machine, trial, document.of(update), document.at(update))
    del machine.commands[kept:]
    _widen(state, document, node)
    return _once(machine, state, document, node, body)


def _once(machine: Machine, state: State, document: Document, node: Node, body: Node) -> control.Result:
    """The body a single time, standing for any number of turns."""
    inside = state.copy()
    machine.repeated += 1
    try:
        if node.type == "while_statement":
            control.run_block(machine, inside, document, node.children_by_field_name("condition"))
        flow, _ = control.run_block(machine, inside, document, body.children)
    finally:
        machine.repeated -= 1
    if flow in (Flow.NEXT, Flow.CONTINUE, Flow.BREAK):
        join_states([state.copy(), inside], state, f"loop at line {document.at(node).span.line}")
    return Flow.NEXT, None


def _widen(state: State, document: Document, node: Node) -> None:
    """Forget what a loop may change: another turn may have run before."""
    replaced: dict[str, Node] = {}
    appended: dict[str, Node] = {}
    shifts = False
    for each in _visit(node):
        if each.type == "variable_assignment":
            target = each.child_by_field_name("name")
            if target is not None:
                base = document.of(target).partition("[")[0]
                grows = any(child.type == "+=" for child in each.children)
                (appended if grows else replaced).setdefault(base, each)
        elif each.type in ("postfix_expression", "unary_expression") and each.named_children:
            raw = document.of(each)
            if "++" in raw or "--" in raw:
                replaced.setdefault(document.of(each.named_children[0]), each)
        elif each.type == "command":
            words = document.of(each).split()
            if words[:1] == ["shift"]:
                shifts = True
            elif words[:1] in (["read"], ["let"], ["getopts"], ["mapfile"], ["readarray"]):
                for word in words[1:]:
                    name_only = word.strip("\"'").partition("=")[0].rstrip("+-")
                    if name_only.isidentifier():
                        replaced.setdefault(name_only, each)
    for name, where in replaced.items():
        place = document.at(where)
        why = f"${name} is set anew by the loop at line {place.span.line}"
        if state.get(name) is not None:
            state.put(name, Slot(Kind.TEXT, place, hole(why, place, f"${name}", many=True)))
    for name, where in appended.items():
        slot = state.get(name)
        if name in replaced or slot is None:
            continue
        place = document.at(where)
        rest = hole(f"what earlier turns of the loop appended to ${name}", place, document.of(where)[:80], many=True)
        if slot.kind is Kind.ARRAY:
            items = (*slot.items, Field(rest, place, True))
            state.put(name, Slot(Kind.ARRAY, slot.place, items=items, condition=slot.condition))
        elif slot.kind is Kind.TEXT:
            state.put(name, Slot(Kind.TEXT, slot.place, slot.text + rest, condition=slot.condition))
    if shifts:
        state.positional = Positional(None, state.positional.owner)


def _visit(node: Node) -> Iterable[Node]:
    waiting = [node]
    for _ in range(_MOST_VISITED):
        if not waiting:
            return
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))
