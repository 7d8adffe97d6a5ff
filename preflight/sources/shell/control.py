"""Follows statements: lists, branches, loops, functions. What cannot be decided is followed both ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from preflight.job import NoteKind
from preflight.sources.shell import arithmetic, commands, conditions, declarations, expand, loops
from preflight.sources.shell.document import Document
from preflight.sources.shell.machine import DEEPEST, Machine
from preflight.sources.shell.state import Flow, State, join_states
from preflight.sources.shell.text import known

if TYPE_CHECKING:
    from tree_sitter import Node

#: How a statement ended, and whether it succeeded where that is known.
Result = tuple[Flow, "bool | None"]
_DONE: Result = (Flow.NEXT, None)


def run_block(machine: Machine, state: State, document: Document, nodes: Iterable[Node]) -> Result:
    """Run statements one after the other."""
    children = list(nodes)
    result: Result = (Flow.NEXT, True)
    for index, node in enumerate(children):
        if not node.is_named or node.type == "comment":
            continue
        if index + 1 < len(children) and children[index + 1].type == "&":
            with machine.standing(background=True):
                run(machine, state.copy(), document, node)
            result = (Flow.NEXT, True)
            continue
        result = run(machine, state, document, node)
        if result[0] is not Flow.NEXT:
            return result
    return result


def run(machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node] = ()) -> Result:
    """Run one statement."""
    machine.step()
    if machine.depth >= DEEPEST:
        machine.note(NoteKind.UNSUPPORTED, "nested too deeply; what is inside was not read", document.at(node))
        return _DONE
    machine.depth += 1
    try:
        return _run(machine, state, document, node, redirects)
    finally:
        machine.depth -= 1


def _run(machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node]) -> Result:
    kind = node.type
    if kind == "command":
        return commands.run_command(machine, state, document, node, redirects)
    if kind == "variable_assignment":
        return declarations.assign(machine, state, document, node), True
    if kind in ("declaration_command", "unset_command"):
        declarations.declare(machine, state, document, node)
        return Flow.NEXT, True
    if kind == "if_statement":
        return _if(machine, state, document, node)
    if kind == "list":
        return _list(machine, state, document, node)
    if kind == "redirected_statement":
        return _redirected(machine, state, document, node, redirects)
    if kind == "pipeline":
        return _pipeline(machine, state, document, node)
    if kind == "test_command":
        return Flow.NEXT, test(machine, state, document, node)
    if kind == "negated_command":
        flow, truth = run_block(machine, state, document, node.named_children)
        return flow, None if truth is None else not truth
    if kind == "compound_statement":
        if document.of(node).lstrip().startswith("(("):
            return Flow.NEXT, test(machine, state, document, node)
        return run_block(machine, state, document, node.children)
    if kind == "subshell":
        flow, truth = run_block(machine, state.copy(), document, node.children)
        return Flow.NEXT, truth
    if kind == "case_statement":
        return _case(machine, state, document, node)
    if kind in ("for_statement", "c_style_for_statement", "while_statement"):
        return loops.run_loop(machine, state, document, node)
    if kind == "function_definition":
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            state.functions[document.of(name)] = (document, body)
        return Flow.NEXT, True
    if kind == "ERROR":
        shown = " ".join(document.of(node).split())[:60]
        if not shown:
            return _DONE
        machine.note(NoteKind.MALFORMED, f"this is not shell that can be parsed: {shown!r}", document.at(node))
    return run_block(machine, state, document, node.children) if node.child_count else _DONE


def test(machine: Machine, state: State, document: Document, node: Node) -> bool | None:
    """Whether `[ ]`, `[[ ]]` or `(( ))` holds."""
    if node.type == "test_command" and not document.of(node).lstrip().startswith("(("):
        return conditions.decide(machine, state, document, node)
    raw = document.of(node)
    start = node.start_byte + len(raw) - len(raw.lstrip()) + 2
    parts = expand.between(machine, state, document, node.children, start, node.end_byte - 2, quoted=True)
    inner = tuple(part.piece for part in parts if part.piece is not None)
    result = known(arithmetic.of_text(machine, state, inner, document.at(node), raw.strip()))
    return None if result is None else result.lstrip("-") != "0"


def _redirected(machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node]) -> Result:
    body = node.child_by_field_name("body")
    own = [*node.children_by_field_name("redirect"), *redirects]
    extra: list[Node] = []
    for redirect in list(own):
        if redirect.type == "heredoc_redirect":
            own += [child for child in redirect.children if child.type == "file_redirect"]
            extra += [c for c in redirect.children if c.type in ("pipeline", "list", "command", "redirected_statement")]
    result = run(machine, state, document, body, own) if body is not None else _DONE
    if result[0] is Flow.NEXT and extra:
        result = run_block(machine, state, document, extra)
    return result


def _pipeline(machine: Machine, state: State, document: Document, node: Node) -> Result:
    truth: bool | None = None
    stages = [child for child in node.named_children if child.type != "comment"]
    reader = document.of(stages[-1]).split(None, 1)[:1] if len(stages) > 1 else []
    for child in stages:
        with machine.standing(pipe=reader[0] if reader and child is not stages[-1] else ""):
            _, truth = run(machine, state.copy(), document, child)
    return Flow.NEXT, truth


def _list(machine: Machine, state: State, document: Document, node: Node) -> Result:
    """`a && b || c`: the grammar nests it to the left, so it is unrolled."""
    steps: list[tuple[str, Node]] = []
    current: Node | None = node
    while current is not None and current.type == "list":
        named = [child for child in current.children if child.is_named and child.type != "comment"]
        sign = next((child.type for child in current.children if child.type in ("&&", "||")), ";")
        if len(named) < 2:
            return run_block(machine, state, document, current.children)
        steps.append((sign, named[-1]))
        current = named[0]
    if current is None:
        return _DONE
    first = current
    flow, truth = run(machine, state, document, first)
    for sign, right in reversed(steps):
        if flow is not Flow.NEXT:
            return flow, truth
        flow, truth = _then(machine, state, document, first, sign, right, truth)
    return flow, truth


def _then(
    machine: Machine,
    state: State,
    document: Document,
    first: Node,
    sign: str,
    right: Node,
    truth: bool | None,
) -> Result:
    if sign == "&&" and truth is None and first.type == "command" and not _is_test(document, first):
        # A program before && is taken to succeed: that is the run somebody means to start.
        return run(machine, state, document, right)
    if sign not in ("&&", "||"):
        return run(machine, state, document, right)
    if truth is not None:
        if truth == (sign == "&&"):
            return run(machine, state, document, right)
        return Flow.NEXT, truth
    shown = document.of(first)
    branch = state.copy()
    condition = f"{shown} &&" if sign == "&&" else f"{shown} ||"
    with machine.under(condition):
        flow, _ = run(machine, branch, document, right)
    if flow is Flow.NEXT:
        join_states([state.copy(), branch], state, condition)
    return Flow.NEXT, None


def _is_test(document: Document, node: Node) -> bool:
    return document.of(node).split(None, 1)[:1] in (["test"], ["["])


def _if(machine: Machine, state: State, document: Document, node: Node) -> Result:
    branches, otherwise = _clauses(node)
    ends: list[tuple[State, Flow]] = []
    before: list[str] = []
    depth = len(machine.conditions)
    said = ""
    try:
        for condition, body in branches:
            flow, truth = run_block(machine, state, document, condition)
            if flow is not Flow.NEXT:
                return flow, None
            shown = _condition_text(document, condition)
            said = said or f"if {shown}"
            if truth is False:
                continue
            branch = state if truth else state.copy()
            if truth is None:
                machine.conditions.append(_short(f"if {shown}"))
            flow, _ = run_block(machine, branch, document, body)
            ends.append((branch.copy() if truth else branch, flow))
            if truth:
                break
            machine.conditions[-1] = _short(f"not if {shown}")
            before.append(shown)
        else:
            last = state.copy()
            flow, _ = run_block(machine, last, document, otherwise)
            ends.append((last, flow))
    finally:
        del machine.conditions[depth:]
    return _meet(state, ends, said)


def _meet(state: State, ends: Sequence[tuple[State, Flow]], condition: str) -> Result:
    """Go on after a branch: only what reaches its end counts."""
    through = [branch for branch, flow in ends if flow is Flow.NEXT]
    if not through:
        if ends:
            state.adopt(ends[-1][0])
        return max((flow for _, flow in ends), default=Flow.NEXT), None
    join_states(through, state, condition)
    return _DONE


def _short(text: str) -> str:
    return " ".join(text.split())[:200]


def _condition_text(document: Document, nodes: Sequence[Node]) -> str:
    named = [node for node in nodes if node.is_named and node.type != "comment"]
    if not named:
        return ""
    return " ".join(document.text[named[0].start_byte : named[-1].end_byte].split())


def _clauses(node: Node) -> tuple[list[tuple[list[Node], list[Node]]], list[Node]]:
    """The (condition, body) pairs of an if, and its else."""
    branches: list[tuple[list[Node], list[Node]]] = []
    otherwise: list[Node] = []
    condition, body, in_body = _empty(), _empty(), False
    for child in node.children:
        if child.type in ("if", "fi"):
            continue
        if child.type == "then":
            in_body = True
        elif child.type == "elif_clause":
            inner, _ = _clauses(child)
            branches.extend(inner)
        elif child.type == "else_clause":
            otherwise = [each for each in child.children if each.type != "else"]
        elif child.type == "elif":
            continue
        elif in_body:
            body.append(child)
        else:
            condition.append(child)
    return [(condition, body), *branches], otherwise


def _empty() -> list[Node]:
    return []


def _case(machine: Machine, state: State, document: Document, node: Node) -> Result:
    value = node.child_by_field_name("value")
    if value is None:
        return _DONE
    subject = expand.text(machine, state, document, value)
    head = f"case {document.of(value).strip()} in"
    ends: list[tuple[State, Flow]] = []
    decided = False
    for item in node.named_children:
        if item.type != "case_item" or decided:
            continue
        patterns = item.children_by_field_name("value")
        machine.step(40 * len(patterns))
        verdicts = [
            conditions.case_matches(
                subject,
                expand.text(machine, state, document, pattern),
                quoted=pattern.type in ("string", "raw_string"),
            )
            for pattern in patterns
        ]
        if all(verdict is False for verdict in verdicts):
            continue
        sure = any(verdict is True for verdict in verdicts)
        body = [child for child in item.children if child not in patterns and child.type not in ("|", ")", "(")]
        branch = state.copy()
        shown = " ".join(document.of(pattern) for pattern in patterns)
        if sure and not ends:
            flow, _ = run_block(machine, branch, document, body)
        else:
            with machine.under(f"{head} {shown})"):
                flow, _ = run_block(machine, branch, document, body)
        ends.append((branch, flow))
        decided = sure
    if not decided:
        ends.append((state.copy(), Flow.NEXT))
    return _meet(state, ends, head)
