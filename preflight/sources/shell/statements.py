"""Statements: lists, branches, loops, functions, and the commands that are recorded.

A condition that cannot be decided is followed both ways, and the states are joined afterwards. A statement can hold any
other, and a command can start a shell whose code is statements again, so they all share this module.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from preflight._util.budget import note_skipped
from preflight.model.job import NoteKind
from preflight.model.job.value import MAX_ALTERNATIVES
from preflight.sources.base import SUBMITTERS, Command
from preflight.sources.shell import (
    arithmetic,
    branch_conditions,
    inner_shells,
    input_words,
    lookup,
    program_output,
    sbatch_directives,
    shell_builtins,
)
from preflight.sources.shell.abstract_machine import (
    MAX_DEPTH,
    MAX_ITERATIONS,
    MAX_NESTED_ITERATIONS,
    Machine,
    Result,
    Written,
)
from preflight.sources.shell.branch_conditions import Choice, program_choices
from preflight.sources.shell.expansion import expand_text, expand_words, output_text, parts_between, word_parts
from preflight.sources.shell.inner_shells import InnerShell, find_inner_shell, inner_state, state_under_env
from preflight.sources.shell.lookup import found_programs
from preflight.sources.shell.parameter_syntax import without_placeholders
from preflight.sources.shell.shell_builtins import BUILTINS, NAME, Invocation
from preflight.sources.shell.shell_document import Document, Hole, Lit, Place, Text
from preflight.sources.shell.state import Flow, Kind, Positional, Slot, State, join_states
from preflight.sources.shell.words import (
    Field,
    hole,
    join_texts,
    join_words,
    joined,
    known,
    literal,
    reasons,
    spelling_of,
    written_path,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_DONE: Result = (Flow.NEXT, None)


def run_block(machine: Machine, state: State, document: Document, nodes: Iterable[Node]) -> Result:
    """Run statements in sequence."""
    children = list(nodes)
    result: Result = (Flow.NEXT, True)
    for index, node in enumerate(children):
        if not node.is_named or node.type == "comment":
            continue
        if index + 1 < len(children) and children[index + 1].type == "&":
            with machine.run_in_job(background=True):
                run_statement(machine, state.copy(), document, node)
            result = (Flow.NEXT, True)
            continue
        result = run_statement(machine, state, document, node)
        if result[0] is not Flow.NEXT:
            return result
    return result


def run_statement(
    machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node] = ()
) -> Result:
    """Run one statement."""
    machine.step()
    if machine.depth >= MAX_DEPTH:
        place, calls = document.place_of(node), machine.call_stack
        if len(set(calls)) < len(calls):
            machine.add_note(NoteKind.UNSUPPORTED, f"{calls[-1]} calls itself; not followed further", place)
        else:
            machine.add_note(NoteKind.TOO_LARGE, "nested too deeply; the inner statements were not read", place)
        return _DONE
    machine.depth += 1
    try:
        return _run_node(machine, state, document, node, redirects)
    finally:
        machine.depth -= 1


def _run_node(machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node]) -> Result:
    """Run a statement by the type of its node."""
    kind = node.type
    if kind == "command":
        return _run_command(machine, state, document, node, redirects)
    if kind == "variable_assignment":
        return shell_builtins.assign(machine, state, document, node), True
    if kind in ("declaration_command", "unset_command"):
        shell_builtins.declare(machine, state, document, node)
        return Flow.NEXT, True
    if kind == "if_statement":
        return _run_if(machine, state, document, node)
    if kind == "list":
        return _run_list(machine, state, document, node)
    if kind == "redirected_statement":
        return _run_redirected(machine, state, document, node, redirects)
    if kind == "pipeline":
        return _run_pipeline(machine, state, document, node)
    if kind == "test_command":
        return Flow.NEXT, _decide_test(machine, state, document, node)
    if kind == "negated_command":
        flow, truth = run_block(machine, state, document, node.named_children)
        return flow, None if truth is None else not truth
    if kind == "compound_statement":
        if document.text_of(node).lstrip().startswith("(("):
            return Flow.NEXT, _decide_test(machine, state, document, node)
        return run_block(machine, state, document, node.children)
    if kind == "subshell":
        flow, truth = run_block(machine, state.copy(), document, node.children)
        return Flow.NEXT, truth
    if kind == "case_statement":
        return _run_case(machine, state, document, node)
    if kind in ("for_statement", "c_style_for_statement", "while_statement"):
        return _run_loop(machine, state, document, node)
    if kind == "function_definition":
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            state.functions[document.text_of(name)] = (document, body)
        return Flow.NEXT, True
    if kind == "ERROR":
        text_shown = " ".join(document.text_of(node).split())[:60]
        if not text_shown:
            return _DONE
        machine.add_note(
            NoteKind.MALFORMED, f"the shell code cannot be parsed: {text_shown!r}", document.place_of(node)
        )
    return run_block(machine, state, document, node.children) if node.child_count else _DONE


def _decide_test(machine: Machine, state: State, document: Document, node: Node) -> bool | None:
    """Return whether `[ ]`, `[[ ]]` or `(( ))` holds; None when that is unknown."""
    if node.type == "test_command" and not document.text_of(node).lstrip().startswith("(("):
        return branch_conditions.decide(machine, state, document, node)
    raw = document.text_of(node)
    start = node.start_byte + len(raw) - len(raw.lstrip()) + 2
    inner = joined(parts_between(machine, state, document, node.children, start, node.end_byte - 2, quoted=True))
    result = known(arithmetic.evaluate_text(machine, state, inner, document.place_of(node), raw.strip()))
    return None if result is None else result.lstrip("-") != "0"


def _run_redirected(
    machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node]
) -> Result:
    body = node.child_by_field_name("body")
    all_redirects = [*node.children_by_field_name("redirect"), *redirects]
    extra: list[Node] = []
    for redirect in list(all_redirects):
        if redirect.type == "heredoc_redirect":
            all_redirects += [child for child in redirect.children if child.type == "file_redirect"]
            extra += [c for c in redirect.children if c.type in ("pipeline", "list", "command", "redirected_statement")]
    input_words.record_destinations(machine, state, document, all_redirects)
    result = _DONE
    if body is not None and body.type in _COMPOUND and not machine.quiet:
        with machine.run_with_input(input_words.standard_input(machine, state, document, all_redirects)):
            result = run_statement(machine, state, document, body, all_redirects)
        if body.type in ("compound_statement", "subshell"):
            input_words.record_written_by(machine, state, document, body, all_redirects)
    elif body is not None:
        result = run_statement(machine, state, document, body, all_redirects)
    if result[0] is Flow.NEXT and extra:
        # `cat <<EOF | sbatch`: the grammar puts the rest of the pipeline into the here-document.
        piped = _piped_text(machine, state, document, [node], extra[-1])
        with machine.run_with_input(piped):
            result = run_block(machine, state, document, extra)
    return result


#: Statements that hold others, which share their standard input.
_COMPOUND = ("while_statement", "for_statement", "compound_statement", "subshell", "if_statement", "case_statement")
#: Programs whose standard input determines what they start.
_STARTS_FROM_INPUT = inner_shells.SHELLS | frozenset(
    ("while", "xargs", "parallel", "sbatch", "qsub", "bsub", "ssh", "env", "sudo", "read", "mapfile", "{", "(")
)


def _piped_text(
    machine: Machine, state: State, document: Document, stages: Sequence[Node], reader: Node
) -> Text | None:
    """Return the text that `stages` print into a pipe, if `reader` starts something from it; None otherwise, or if
    unknown.
    """
    word = document.text_of(reader).lstrip("| \t\n").split(None, 1)[:1]
    if machine.quiet or not word or word[0].rpartition("/")[2] not in _STARTS_FROM_INPUT:
        return None
    text = output_text(machine, state, document, stages)
    return None if text is None or all(isinstance(piece, Hole) for piece in text) else text


def _run_pipeline(machine: Machine, state: State, document: Document, node: Node) -> Result:
    truth: bool | None = None
    stages = [child for child in node.named_children if child.type != "comment"]
    reader = document.text_of(stages[-1]).split(None, 1)[:1] if len(stages) > 1 else []
    for child in stages:
        piped = machine.input
        if child is not stages[0]:
            piped = _piped_text(machine, state, document, stages[:-1], child) if child is stages[-1] else None
        with (
            machine.run_in_job(pipe=reader[0] if reader and child is not stages[-1] else ""),
            machine.run_with_input(piped),
        ):
            _, truth = run_statement(machine, state.copy(), document, child)
    return Flow.NEXT, truth


def _run_list(machine: Machine, state: State, document: Document, node: Node) -> Result:
    """Run `a && b || c`; the grammar nests it to the left, so it is unrolled first."""
    steps: list[tuple[str, Node]] = []
    first = node
    while first.type == "list":
        named = [child for child in first.children if child.is_named and child.type != "comment"]
        operator = next((child.type for child in first.children if child.type in ("&&", "||")), ";")
        if len(named) < 2:
            return run_block(machine, state, document, first.children)
        steps.append((operator, named[-1]))
        first = named[0]
    flow, truth = run_statement(machine, state, document, first)
    is_program = first.type == "command" and document.text_of(first).split(None, 1)[:1] not in (["test"], ["["])
    for operator, right in reversed(steps):
        if flow is not Flow.NEXT:
            return flow, truth
        # A program before && is assumed to succeed, as the user intends.
        is_assumed = operator == "&&" and truth is None and is_program
        if is_assumed or operator == ";" or truth == (operator == "&&"):
            flow, truth = run_statement(machine, state, document, right)
        elif truth is None:
            condition = f"{document.text_of(first)} {operator}"
            branch = state.copy()
            with machine.run_conditionally(condition):
                flow, _ = run_statement(machine, branch, document, right)
            if flow is Flow.NEXT:
                join_states([state.copy(), branch], state, condition)
            flow = Flow.NEXT
    return flow, truth


def _run_if(machine: Machine, state: State, document: Document, node: Node) -> Result:
    branches, otherwise = _if_clauses(node)
    ends: list[tuple[State, Flow]] = []
    depth = len(machine.conditions)
    first_condition = ""
    try:
        for condition, body in branches:
            flow, truth = run_block(machine, state, document, condition)
            if flow is not Flow.NEXT:
                return flow, None
            text_shown = _condition_text(document, condition)
            first_condition = first_condition or f"if {text_shown}"
            if truth is False:
                continue
            branch = state if truth else state.copy()
            if truth is None:
                machine.conditions.append(_shorten(f"if {text_shown}"))
            flow, _ = run_block(machine, branch, document, body)
            ends.append((branch.copy() if truth else branch, flow))
            if truth:
                break
            machine.conditions[-1] = _shorten(f"not if {text_shown}")
        else:
            last = state.copy()
            flow, _ = run_block(machine, last, document, otherwise)
            ends.append((last, flow))
    finally:
        del machine.conditions[depth:]
    return _join_branches(state, ends, first_condition)


def _join_branches(state: State, ends: Sequence[tuple[State, Flow]], condition: str) -> Result:
    """Continue after a branch: only the branches that reach its end count."""
    through = [branch for branch, flow in ends if flow is Flow.NEXT]
    if not through:
        if ends:
            state.adopt(ends[-1][0])
        return max((flow for _, flow in ends), default=Flow.NEXT), None
    join_states(through, state, condition)
    return _DONE


def _shorten(text: str) -> str:
    """Put the text on one line of at most 200 characters."""
    return " ".join(text.split())[:200]


def _condition_text(document: Document, nodes: Sequence[Node]) -> str:
    named = [node for node in nodes if node.is_named and node.type != "comment"]
    if not named:
        return ""
    return " ".join(document.text[named[0].start_byte : named[-1].end_byte].split())


def _if_clauses(node: Node) -> tuple[list[tuple[list[Node], list[Node]]], list[Node]]:
    """Return the (condition, body) pairs of an `if`, and the body of its `else`."""
    branches: list[tuple[list[Node], list[Node]]] = []
    otherwise: list[Node] = []
    condition: list[Node] = []
    body: list[Node] = []
    in_body = False
    for child in node.children:
        if child.type in ("if", "fi"):
            continue
        if child.type == "then":
            in_body = True
        elif child.type == "elif_clause":
            inner, _ = _if_clauses(child)
            branches.extend(inner)
        elif child.type == "else_clause":
            otherwise = [part for part in child.children if part.type != "else"]
        elif child.type == "elif":
            continue
        elif in_body:
            body.append(child)
        else:
            condition.append(child)
    return [(condition, body), *branches], otherwise


def _run_case(machine: Machine, state: State, document: Document, node: Node) -> Result:
    value = node.child_by_field_name("value")
    if value is None:
        return _DONE
    subject = expand_text(machine, state, document, value)
    case_text = f"case {document.text_of(value).strip()} in"
    ends: list[tuple[State, Flow]] = []
    decided = False
    for item in node.named_children:
        if item.type != "case_item" or decided:
            continue
        patterns = item.children_by_field_name("value")
        machine.step(40 * len(patterns))
        verdicts = [
            branch_conditions.case_matches(
                subject,
                expand_text(machine, state, document, pattern),
                quoted=pattern.type in ("string", "raw_string"),
            )
            for pattern in patterns
        ]
        if all(verdict is False for verdict in verdicts):
            continue
        matched = any(verdict is True for verdict in verdicts)
        body = [child for child in item.children if child not in patterns and child.type not in ("|", ")", "(")]
        branch = state.copy()
        text_shown = " ".join(document.text_of(pattern) for pattern in patterns)
        if matched and not ends:
            flow, _ = run_block(machine, branch, document, body)
        else:
            with machine.run_conditionally(f"{case_text} {text_shown})"):
                flow, _ = run_block(machine, branch, document, body)
        ends.append((branch, flow))
        decided = matched
    if not decided:
        ends.append((state.copy(), Flow.NEXT))
    return _join_branches(state, ends, case_text)


#: Shells started inside each other.
MAX_NESTED_SHELLS = 5
_MAX_NODES = 20_000
#: Nodes of a loop that cost one step: an inner loop is searched again in every iteration of the outer one.
_NODES_PER_STEP = 16


def _run_loop(machine: Machine, state: State, document: Document, node: Node) -> Result:
    """Run a `for`, `while`, `until` or `select` loop.

    A loop over known words is followed iteration by iteration. Otherwise the body runs once, after everything it may
    change has become unknown.
    """
    body = node.child_by_field_name("body")
    if body is None:
        return Flow.NEXT, None
    if node.type == "for_statement":
        return _run_for(machine, state, document, node, body)
    conditions = _loop_conditions(machine, state, document, node)
    lines = _lines_read(machine, document, conditions)
    if lines is not None:
        return _run_lines(machine, state, document, body, *lines)
    return _run_while(machine, state, document, node, body, conditions)


def _lines_read(machine: Machine, document: Document, conditions: Sequence[Node]) -> tuple[Node, list[Text]] | None:
    """Return the `read` of `while read -r host rank`, and the lines of its input where they are known and few."""
    named = [child for child in conditions if child.is_named and child.type != "comment"]
    while len(named) == 1 and named[0].type == "list":
        # `while read -r line || [[ -n $line ]]`
        named = [child for child in named[0].named_children if child.type != "comment"][:1]
    if machine.input is None or len(named) != 1 or named[0].type != "command":
        return None
    name = named[0].child_by_field_name("name")
    if name is None or document.text_of(name).strip() != "read":
        return None
    lines = list(itertools.islice(input_words.lines_of(machine.input), MAX_ITERATIONS + 1))
    few = len(lines) <= MAX_ITERATIONS and len(lines) * math.prod(machine.loop_sizes) <= MAX_NESTED_ITERATIONS
    whole = all(isinstance(piece, Lit) or not (isinstance(piece, Hole) and piece.many) for piece in machine.input)
    return (named[0], lines) if few and whole else None


def _run_lines(
    machine: Machine, state: State, document: Document, body: Node, reads: Node, lines: Sequence[Text]
) -> Result:
    """Run the body of `while read ...` once for each line of its input."""
    words, separators = _read_words(machine, state, document, reads)
    reader = input_words.parse(words)
    if not reader.plain:
        return _run_body_once(machine, state, document, body, body)
    place = document.place_of(reads)
    with machine.run_with_input(None):
        assign = functools.partial(input_words.assign_line, state, reader)
        turns = [functools.partial(assign, line, separators, place) for line in lines]
        return _run_iterations(machine, state, document, body, turns)


def _read_words(machine: Machine, state: State, document: Document, node: Node) -> tuple[list[Field], str]:
    """Return the words of a `read` command, and the separators it uses: `IFS=, read -r a b`."""
    separators = state.separators()
    written: list[Node] = []
    for index, child in enumerate(node.children):
        if child.type == "variable_assignment":
            target, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if target is not None and document.text_of(target) == "IFS":
                given = known(expand_text(machine, state, document, value)) if value is not None else ""
                separators = separators if given is None else given
        elif node.field_name_for_child(index) in ("name", "argument") and child.is_named:
            written.append(child)
    return expand_words(machine, state, document, written), separators


def _run_for(machine: Machine, state: State, document: Document, node: Node, body: Node) -> Result:
    variable = node.child_by_field_name("variable")
    name = document.text_of(variable) if variable is not None else "_"
    place = document.place_of(variable if variable is not None else node)
    written = node.children_by_field_name("value")
    if written:
        items = expand_words(machine, state, document, written)
    elif any(child.type == "in" for child in node.children):
        items = []
    else:
        found = state.positional.fields
        items = list(found) if found is not None else [_unknown_arguments(state, document, node)]
    certain = not any(item.many for item in items)
    if certain and len(items) <= MAX_ITERATIONS and len(items) * math.prod(machine.loop_sizes) <= MAX_NESTED_ITERATIONS:
        slots = [Slot(Kind.TEXT, item.place, item.text) for item in items]
        turns = [functools.partial(state.put, name, slot) for slot in slots]
        return _run_iterations(machine, state, document, body, turns)
    if certain and len(items) <= MAX_ALTERNATIVES:
        _forget_changes(machine, state, document, body)
        text = join_texts([item.text for item in items], place, f"${name}")
        state.put(name, Slot(Kind.TEXT, place, text))
        return _run_body_once(machine, state, document, node, body)
    why = next((reasons(item.text) for item in items if item.many), f"one of {len(items)} words")
    if len(items) <= MAX_ITERATIONS and any(not item.many for item in items):
        why = f"one of several words of the loop ({why})"
    _forget_changes(machine, state, document, body)
    state.put(name, Slot(Kind.TEXT, place, hole(f"${name} is one of {why}", place, f"${name}")))
    return _run_body_once(machine, state, document, node, body)


def _unknown_arguments(state: State, document: Document, node: Node) -> Field:
    place = document.place_of(node)
    return Field(hole(f"the arguments of {state.positional.owner}", place, "$@", many=True), place, True)


def _run_iterations(
    machine: Machine, state: State, document: Document, body: Node, turns: Sequence[Callable[[], None]]
) -> Result:
    """Run the body once after each of `turns`, which sets the variables of the loop."""
    machine.loop_sizes.append(max(len(turns), 1))
    try:
        for begin in turns:
            machine.step()
            begin()
            flow, _ = run_block(machine, state, document, body.children)
            if flow in (Flow.RETURN, Flow.EXIT):
                return flow, None
            if flow is Flow.BREAK:
                break
    finally:
        machine.loop_sizes.pop()
    return Flow.NEXT, None


def _loop_conditions(machine: Machine, state: State, document: Document, node: Node) -> list[Node]:
    """Return the condition nodes of a while loop; for `for ((;;))` the initializer runs here."""
    if node.type == "c_style_for_statement":
        for start in node.children_by_field_name("initializer"):
            if start.is_named:
                arithmetic.evaluate_expression(machine, state, document.text_of(start), document.place_of(start))
        return [child for child in node.children_by_field_name("condition") if child.is_named]
    return list(node.children_by_field_name("condition"))


def _loop_continues(
    machine: Machine, state: State, document: Document, node: Node, conditions: list[Node]
) -> bool | None:
    if node.type == "c_style_for_statement":
        if not conditions:
            return None
        last = conditions[-1]
        inner = joined(word_parts(machine, state, document, last, quoted=True))
        plain = known(arithmetic.evaluate_text(machine, state, inner, document.place_of(last), document.text_of(last)))
        return None if plain is None else plain != "0"
    if _is_endless(document, conditions):
        return None
    _, truth = run_block(machine, state, document, conditions)
    if truth is None:
        return None
    return truth != any(child.type == "until" for child in node.children)


def _is_endless(document: Document, conditions: list[Node]) -> bool:
    named = [document.text_of(child).strip() for child in conditions if child.is_named]
    return named in (["true"], [":"], ["[ 1 ]"], ["((1))"])


def _run_while(
    machine: Machine, state: State, document: Document, node: Node, body: Node, conditions: list[Node]
) -> Result:
    trial = state.copy()
    kept = len(machine.commands)
    limit = min(MAX_ITERATIONS, MAX_NESTED_ITERATIONS // math.prod(machine.loop_sizes))
    for turn in range(limit + 1):
        truth = _loop_continues(machine, trial, document, node, conditions)
        if truth is False:
            state.adopt(trial)
            return Flow.NEXT, None
        if truth is None or turn == limit:
            break
        flow, _ = run_block(machine, trial, document, body.children)
        if flow in (Flow.RETURN, Flow.EXIT):
            state.adopt(trial)
            return flow, None
        if flow is Flow.BREAK:
            state.adopt(trial)
            return Flow.NEXT, None
        for update in node.children_by_field_name("update"):
            if update.is_named:
                arithmetic.evaluate_expression(machine, trial, document.text_of(update), document.place_of(update))
    del machine.commands[kept:]
    _forget_changes(machine, state, document, node)
    return _run_body_once(machine, state, document, node, body)


def _run_body_once(machine: Machine, state: State, document: Document, node: Node, body: Node) -> Result:
    """Run the body once, to represent any number of iterations."""
    inside = state.copy()
    machine.repeat_depth += 1
    try:
        if node.type == "while_statement":
            run_block(machine, inside, document, node.children_by_field_name("condition"))
        flow, _ = run_block(machine, inside, document, body.children)
    finally:
        machine.repeat_depth -= 1
    if flow in (Flow.NEXT, Flow.CONTINUE, Flow.BREAK):
        join_states([state.copy(), inside], state, f"loop at line {document.place_of(node).span.line}")
    return Flow.NEXT, None


def _forget_changes(machine: Machine, state: State, document: Document, node: Node) -> None:
    """Mark everything that a loop may change as unknown, because earlier iterations may have run."""
    replaced: dict[str, Node] = {}
    appended: dict[str, Node] = {}
    shifts = False
    for number, descendant in enumerate(_descendants(node)):
        if not number % _NODES_PER_STEP:
            machine.step()
        if descendant.type == "variable_assignment":
            target = descendant.child_by_field_name("name")
            if target is not None:
                base = document.text_of(target).partition("[")[0]
                grows = any(child.type == "+=" for child in descendant.children)
                (appended if grows else replaced).setdefault(base, descendant)
        elif descendant.type in ("postfix_expression", "unary_expression") and descendant.named_children:
            raw = document.text_of(descendant)
            if "++" in raw or "--" in raw:
                replaced.setdefault(document.text_of(descendant.named_children[0]), descendant)
        elif descendant.type == "command":
            words = document.text_of(descendant).split()
            if words[:1] == ["shift"]:
                shifts = True
            elif words[:1] in (["read"], ["let"], ["getopts"], ["mapfile"], ["readarray"]):
                for word in words[1:]:
                    name_only = word.strip("\"'").partition("=")[0].rstrip("+-")
                    if name_only.isidentifier():
                        replaced.setdefault(name_only, descendant)
    for name, where in replaced.items():
        place = document.place_of(where)
        why = f"${name} is reassigned by the loop at line {place.span.line}"
        if state.get(name) is not None:
            state.put(name, Slot(Kind.TEXT, place, hole(why, place, f"${name}", many=True)))
    for name, where in appended.items():
        slot = state.get(name)
        if name in replaced or slot is None:
            continue
        place = document.place_of(where)
        why = f"the text that earlier iterations appended to ${name}"
        rest = hole(why, place, document.text_of(where)[:80], many=True)
        if slot.kind is Kind.ARRAY:
            items = (*slot.items, Field(rest, place, True))
            state.put(name, Slot(Kind.ARRAY, slot.place, items=items, condition=slot.condition))
        elif slot.kind is Kind.TEXT:
            state.put(name, Slot(Kind.TEXT, slot.place, slot.text + rest, condition=slot.condition))
    if shifts:
        state.positional = Positional(None, state.positional.owner)


def _descendants(node: Node) -> Iterable[Node]:
    waiting = [node]
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))
    note_skipped(f"a loop has more than {_MAX_NODES} syntax nodes; the variables that its end changes were not read")


_LINE_END = re.compile(r"(?<!\\)\n")
_ENVIRONMENT_SETUP = re.compile(
    r"(module|ml|spack|conda|mamba|micromamba|source|\.)\s+(load|add|use|swap|purge|activate)\b"
    r"|ml\s+\S|(source|\.)\s+\S*(activate|conda\.sh|(set|mpi)?vars\.sh|modules?(\.sh)?|lmod\S*|spack\S*)(\s|$)"
    r"|eval\s.*(conda|mamba|modulecmd)"
)
#: Recursive calls of one function.
MAX_CALLS = 8
_WORDS = re.compile(r"[\w.:-]+")
#: What a function contains that may start ranks.
_STARTS_PYTHON = re.compile(r"python|torchrun|deepspeed|accelerate|mpirun|srun|fleetrun|paddle")


def _run_command(machine: Machine, state: State, document: Document, node: Node, redirects: Sequence[Node]) -> Result:
    """Run a simple command: a builtin, a function, or a program, which is recorded."""
    written: list[Node] = []
    prefixes: list[Node] = []
    all_redirects = list(redirects)
    start = node.start_byte
    for index, child in enumerate(node.children):
        field = node.field_name_for_child(index)
        if prefixes and not written and child.type != "comment" and _is_on_later_line(document, prefixes[-1], child):
            # The grammar parses `A=1 B=2` on a line of its own as prefixes of the command on the next line.
            for prefix in prefixes:
                shell_builtins.assign(machine, state, document, prefix)
            prefixes, start = [], child.start_byte
        if child.type == "variable_assignment":
            prefixes.append(child)
        elif field == "redirect" or child.type.endswith("_redirect"):
            all_redirects.append(child)
        elif field in ("name", "argument") and (child.is_named or child.type != "$"):
            written.append(child)
    for redirect in all_redirects:
        if redirect.type == "heredoc_redirect":
            index_of = redirect.field_name_for_child
            written += [c for i, c in enumerate(redirect.children) if index_of(i) == "argument" and c.is_named]
    choices = program_choices(machine, state, document, written)
    if choices:
        return _run_choices(machine, state, document, node, redirects, choices)
    place = document.place(start, node.end_byte)
    assigned = [
        found for prefix in prefixes if (found := shell_builtins.evaluate_assignment(machine, state, document, prefix))
    ]
    starts: list[int] | None = None if machine.trace is None else []
    fields = found_programs(expand_words(machine, state, document, written, starts=starts))
    input_words.record_written_file(machine, state, document, all_redirects, fields)
    if not fields:
        for name, slot in assigned:
            state.put(name, slot)
        return Flow.NEXT, True
    target = state
    if assigned:
        target = state.copy()
        for name, slot in assigned:
            target.put(name, slot)
            target.export(name, slot.place)
    invocation = Invocation(machine, state, target, document, fields, all_redirects, place)
    if starts is not None:
        ranges = [(document.start_of(word), word.end_byte) for word in written]
        invocation.written = Written(document, tuple(ranges), tuple(starts), tuple(fields))
    name_of = fields[0].known
    if name_of is None:
        machine.calls_unknown |= any(isinstance(piece, Hole) for piece in fields[0].text[:1])
        return _record(invocation)
    if name_of == "builtin" and len(fields) > 1:
        fields = invocation.fields = fields[1:]
        name_of = fields[0].known or ""
    function = state.functions.get(name_of)
    if function is not None:
        return _call_function(invocation, name_of, *function)
    builtin = _BUILTINS.get(name_of)
    return _record(invocation) if builtin is None else builtin(invocation)


def _run_choices(
    machine: Machine,
    state: State,
    document: Document,
    node: Node,
    redirects: Sequence[Node],
    choices: Sequence[Choice],
) -> Result:
    """Run a command once for each program that it may start; the variables themselves stay as they are."""
    ends: list[tuple[State, Flow]] = []
    for choice in choices:
        branch = state.copy()
        before = {name: branch.get(name) for name in choice.variables}
        for name, slot in choice.variables.items():
            branch.put(name, slot)
        chosen = {name: branch.get(name) for name in choice.variables}
        with machine.run_conditionally(choice.condition):
            flow, _ = _run_command(machine, branch, document, node, redirects)
        for name, old in before.items():
            if old is not None and branch.get(name) is chosen[name]:
                branch.put(name, old)
        ends.append((branch, flow))
    return _join_branches(state, ends, "")


def _is_on_later_line(document: Document, before: Node, node: Node) -> bool:
    """Return whether a line ends between two nodes without a backslash that continues it."""
    return bool(_LINE_END.search(document.text[before.end_byte : node.start_byte]))


def _record(invocation: Invocation) -> Result:
    """Record a program, and follow it when it starts a shell."""
    machine, state = invocation.machine, invocation.target
    words = invocation.plain
    if words[0] == "env":
        state = state_under_env(state, invocation.fields)
    command = machine.emit(state, invocation.fields, invocation.place)
    if command is not None:
        invocation.traced(command)
        if words[0].rpartition("/")[2] in input_words.PROGRAMS:
            _run_starts(invocation, state, command)
        else:
            follow_inner_shell(
                machine, state, invocation.document, invocation.fields, invocation.redirects, command, invocation.place
            )
        _note_prelude(invocation, " ".join(words))
    if words[0] == "exec" and len(words) > 1:
        return Flow.EXIT, None
    return Flow.NEXT, None


def _run_starts(invocation: Invocation, state: State, command: Command) -> None:
    """Run the commands that `xargs` or `parallel` starts, one for each argument."""
    machine, place = invocation.machine, invocation.place
    given = input_words.standard_input(machine, state, invocation.document, invocation.redirects)
    name = invocation.plain[0].rpartition("/")[2]
    found = input_words.starts_of(name, invocation.fields[1:], given, place)
    if found is None or len(machine.outer_commands) >= MAX_NESTED_SHELLS or machine.depth >= MAX_DEPTH - 4:
        return
    machine.repeat_depth += not found.certain
    try:
        with machine.run_in_shell(command), machine.run_with_input(None):
            for words in found.commands:
                machine.step()
                with machine.run_in_job(background=found.concurrent):
                    _run_start(machine, state.copy(), words, place, code=found.code)
    finally:
        machine.repeat_depth -= not found.certain


def _run_start(machine: Machine, state: State, words: Sequence[Field], place: Place, *, code: bool) -> None:
    """Run one command by its words, or as code of a shell."""
    if code:
        inside = Document(join_words(words, place), place)
        run_statement(machine, state, inside, inside.root)
        return
    started = machine.emit(state, words, place)
    if started is not None:
        follow_inner_shell(machine, state, Document((), place), words, (), started, place)


def _note_prelude(invocation: Invocation, text_shown: str) -> None:
    if _ENVIRONMENT_SETUP.match(text_shown):
        written = " ".join(invocation.document.text[_call_range(invocation)].split())
        text = literal(written or text_shown, invocation.place)
        invocation.state.prelude = (*invocation.state.prelude, Field(text, invocation.place))


def _call_range(invocation: Invocation) -> slice:
    """Return the characters of the command in its file; empty for an inner script."""
    own, of_file = invocation.document.text, invocation.document.fallback.file.text
    is_inner = own is not of_file and len(own) != len(of_file)
    return slice(0, 0) if is_inner else slice(invocation.place.start, invocation.place.end)


def _call_function(invocation: Invocation, name: str, document: Document, body: Node) -> Result:
    machine, state = invocation.machine, invocation.target
    if machine.call_stack.count(name) >= MAX_CALLS or machine.depth >= MAX_DEPTH - 2:
        machine.add_note(NoteKind.UNSUPPORTED, f"{name} calls itself; not followed further", invocation.place)
        return Flow.NEXT, None
    before = state.positional
    state.positional = Positional(tuple(invocation.fields[1:]), name)
    state.locals.append({})
    machine.called.add(name)
    machine.call_stack.append(name)
    machine.starts.append(invocation.place.span)
    try:
        flow, truth = run_statement(machine, state, document, body)
    finally:
        machine.starts.pop()
        machine.call_stack.pop()
        state.leave_function()
        state.positional = before
    if state is not invocation.state:
        # VAR=x f: the assignment lasts for the call only.
        kept = dict(invocation.state.variables.items())
        prefixed = {n for n in state.variables if n not in kept}
        invocation.state.adopt(state)
        for prefix in prefixed:
            invocation.state.variables.setdefault(prefix, state.variables[prefix])
    return (flow if flow is Flow.EXIT else Flow.NEXT), truth if flow is Flow.NEXT else None


def run_uncalled(machine: Machine, state: State, document: Document) -> None:
    """Run the functions of a script that only a file outside of the tree can call, or a name known only at run time.

    Their arguments are unknown. A function that another of them calls runs when that one does.
    """
    if not machine.calls_unknown:
        return
    bodies = {
        name: body
        for name, (inside, body) in state.functions.items()
        if inside is document and name not in machine.called
    }
    words = {name: frozenset(_WORDS.findall(document.text_of(body))) for name, body in bodies.items()}
    starting = {name for name, body in bodies.items() if _STARTS_PYTHON.search(document.text_of(body))}
    for _ in words:
        starting.update(name for name, inside in words.items() if inside & starting)
    for name, body in bodies.items():
        callers = (other for other in starting if other != name and other not in machine.called)
        if name not in starting or name in machine.called or any(name in words[other] for other in callers):
            continue
        inner = state.copy()
        inner.positional = Positional(None, name)
        inner.locals.append({})
        machine.called.add(name)
        machine.call_stack.append(name)
        try:
            with machine.run_conditionally(f"{name} is called"):
                run_statement(machine, inner, document, body)
        finally:
            machine.call_stack.pop()


def _source(invocation: Invocation) -> Result:
    machine, state = invocation.machine, invocation.state
    command = machine.emit(invocation.target, invocation.fields, invocation.place)
    invocation.traced(command)
    words = invocation.plain
    _note_prelude(invocation, " ".join(words))
    if len(invocation.fields) < 2:
        return Flow.NEXT, None
    path = written_path(invocation.fields[1])
    place = invocation.fields[1].place
    if path is None:
        if not _ENVIRONMENT_SETUP.match(f"source {spelling_of(invocation.fields[1].text)}"):
            machine.calls_unknown = True
            machine.add_note(NoteKind.MISSING, "the file sourced here is known only at run time", place)
        return Flow.NEXT, None
    target = lookup.locate(machine, state, path)
    if target is None:
        machine.add_note(NoteKind.OUTSIDE, f"{path} is outside the root; the variables that it sets are unknown", place)
        return Flow.NEXT, None
    machine.add_reference(target, "source", place)
    found = lookup.read_file(machine, state, path)
    if found is None:
        machine.calls_unknown |= not _ENVIRONMENT_SETUP.match(f"source {path}")
        machine.add_note(NoteKind.MISSING, f"{path} is not in the tree; the variables that it sets are unknown", place)
        return Flow.NEXT, None
    if machine.open_files.count(target) >= 2 or len(machine.open_files) >= 12:
        machine.add_note(NoteKind.UNSUPPORTED, f"{path} sources itself; not followed further", place)
        return Flow.NEXT, None
    if machine.trace is not None:
        machine.trace.record_entry(command, invocation.fields[1], target)
    before = state.positional
    if len(invocation.fields) > 2:
        state.positional = Positional(tuple(invocation.fields[2:]), path)
    machine.open_files.append(target)
    try:
        inside = lookup.parsed_document(machine, found)
        flow, _ = run_statement(machine, state, inside, inside.root)
    finally:
        machine.open_files.pop()
        state.positional = before
    return (flow if flow is Flow.EXIT else Flow.NEXT), None


def _eval(invocation: Invocation) -> Result:
    if _ENVIRONMENT_SETUP.match(" ".join(["eval", *(spelling_of(item.text) for item in invocation.fields[1:])])):
        invocation.machine.emit(invocation.target, invocation.fields, invocation.place)
        _note_prelude(invocation, "eval conda")
        return Flow.NEXT, None
    text = without_placeholders(join_words(invocation.fields[1:], invocation.place))
    inside = Document(text, invocation.place)
    return run_statement(invocation.machine, invocation.target, inside, inside.root)


def _printf(invocation: Invocation) -> Result:
    """Run `printf -v NAME FORMAT ...`, which assigns; any other printf is recorded."""
    words = invocation.plain
    if len(words) < 4 or words[1] != "-v" or not NAME.fullmatch(words[2]):
        return _record(invocation)
    place, spelling = invocation.place, f"${words[2]}"
    plain = all(item.known is not None for item in invocation.fields[3:])
    printed = program_output.printf(words[3:]) if plain else None
    text = hole("the output of printf", place, spelling) if printed is None else literal(printed, place)
    invocation.state.put(words[2], Slot(Kind.TEXT, place, text))
    return Flow.NEXT, True


_BUILTINS: dict[str, Callable[[Invocation], Result]] = {
    **BUILTINS,
    "source": _source,
    ".": _source,
    "eval": _eval,
    "printf": _printf,
}


def follow_inner_shell(
    machine: Machine,
    state: State,
    document: Document,
    fields: Sequence[Field],
    redirects: Sequence[Node],
    command: Command,
    place: Place,
) -> None:
    """Evaluate the shell that a command starts, if any; its commands are recorded with `command` as their `outer`."""
    found = find_inner_shell(fields, place)
    if found is None:
        return
    if len(machine.outer_commands) >= MAX_NESTED_SHELLS or machine.depth >= MAX_DEPTH - 4:
        machine.add_note(NoteKind.TOO_LARGE, "shells nested too deeply; not followed further", place)
        return
    text, path = found.text, found.path
    given = input_words.standard_input(machine, state, document, redirects) if found.reads_input or redirects else None
    if found.reads_input:
        text, given = given, None
        if text is None and path is None:
            return
    shell = inner_state(machine, state, found, fields, command, place)
    with machine.run_in_shell(command), machine.run_with_input(given):
        if text is not None:
            _run_inner_text(machine, shell, text, found, place)
        elif path is not None:
            _run_inner_file(machine, shell, path, found)


def _run_inner_text(machine: Machine, shell: State, text: Text, inner_shell: InnerShell, place: Place) -> None:
    inside = Document(text, place)
    if "sbatch" in inner_shell.wrappers:
        before = {(item.option, item.span) for item in machine.directives}
        found = sbatch_directives.directives(inside)
        machine.directives += [each for each in found if (each.option, each.span) not in before]
    run_statement(machine, shell, inside, inside.root)


def _run_inner_file(machine: Machine, shell: State, path: Field, inner_shell: InnerShell) -> None:
    word = written_path(path)
    text = machine.written_texts.get(lookup.written_key(machine, shell, path.text))
    if text is not None and (machine.trace is None or word is None or "sbatch" in inner_shell.wrappers):
        target = lookup.locate(machine, shell, word) if word is not None else None
        if target is not None:
            machine.add_reference(target, "script", path.place)
        # Its header is that of a different job from the script's own; only the commands are read here.
        inside = Document(text, path.place)
        run_statement(machine, shell, inside, inside.root)
        return
    if word is None:
        return
    target = lookup.locate(machine, shell, word)
    if target is None:
        if inner_shell.is_shell:
            machine.add_note(NoteKind.OUTSIDE, f"{word} is outside the root; it was not read", path.place)
        return
    content = lookup.read_file(machine, shell, word)
    if content is None:
        if inner_shell.is_shell or word.endswith((".sh", ".bash")):
            machine.add_reference(target, "script", path.place)
            machine.add_note(NoteKind.MISSING, f"{word} is not in the tree; it was not read", path.place)
        return
    machine.add_reference(target, "script", path.place)
    submitted = bool(SUBMITTERS.intersection(inner_shell.wrappers))
    if submitted and machine.trace is not None:
        # A separate job with its own header; it is read with its own file.
        return
    if target in machine.open_files:
        machine.add_note(NoteKind.UNSUPPORTED, f"{word} runs itself; not followed further", path.place)
        return
    if machine.trace is not None:
        machine.trace.record_entry(machine.outer_commands[-1] if machine.outer_commands else None, path, target)
    machine.open_files.append(target)
    try:
        inside = lookup.parsed_document(machine, content)
        run_statement(machine, shell, inside, inside.root)
    finally:
        machine.open_files.pop()
