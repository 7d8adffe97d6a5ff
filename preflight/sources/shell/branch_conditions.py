"""Decides `[ ... ]`, `[[ ... ]]`, `test` and `case` patterns, and which program a branch chooses; None unless all
alternatives agree.

A value that differs between branches is one word with alternatives, as long as each alternative is one word. A launcher
and its options are a different number of words in each branch, so the command is followed once for each of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from preflight.sources.base import FROM_CALLER, assume_nothing_given
from preflight.sources.shell import parameter_syntax
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.expansion import expand_text, expand_words
from preflight.sources.shell.shell_document import Alt, Document, Hole, Lit, Text
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.words import Field, is_empty, known, possible_texts, spelling_of

if TYPE_CHECKING:
    from tree_sitter import Node


_COMPOUND_NODES = (
    *("unary_expression", "binary_expression", "parenthesized_expression", "negation_expression"),
    *("ternary_expression", "postfix_expression"),
)
_NUMERIC_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_STRING_OPERATORS = frozenset(("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef"))
_UNARY_OPERATORS = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxzGLNORSnov")
_MAX_TOKENS = 200


class _Token(NamedTuple):
    operator: str
    text: Text = ()
    pattern: bool = False

    @property
    def is_operator(self) -> bool:
        return bool(self.operator)


def decide(machine: Machine, state: State, document: Document, node: Node) -> bool | None:
    """Return whether a `test_command` node holds; None when that depends on unknown values."""
    machine.step()
    double = document.text_of(node).lstrip().startswith("[[")
    tokens: list[_Token] = []
    _flatten(machine, state, document, node.children[1:-1], tokens, double)
    return _evaluate_tokens(machine, state, tokens)


def decide_words(machine: Machine, state: State, fields: Sequence[Field]) -> bool | None:
    """Return whether `test ...` holds, given its words; None when that depends on unknown values."""
    tokens = []
    for item in fields:
        if item.many:
            return None
        known_operators = (_STRING_OPERATORS, _NUMERIC_OPERATORS, _UNARY_OPERATORS, ("!", "(", ")", "-a", "-o"))
        is_operator = any(item.known in operators for operators in known_operators)
        tokens.append(_Token(item.known or "" if is_operator else "", item.text))
    return _evaluate_tokens(machine, state, tokens)


def _flatten(
    machine: Machine,
    state: State,
    document: Document,
    nodes: Sequence[Node],
    tokens: list[_Token],
    double: bool,
) -> None:
    for node in nodes:
        if len(tokens) > _MAX_TOKENS:
            return
        waiting = [node]
        # A chain of && is nested to the left as deep as it is long, so it is walked without recursion.
        while waiting:
            current = waiting.pop()
            if current.type in _COMPOUND_NODES:
                waiting.extend(reversed(current.children))
            else:
                _token(machine, state, document, current, tokens, double)


def _token(machine: Machine, state: State, document: Document, node: Node, tokens: list[_Token], double: bool) -> None:
    raw = document.text_of(node).strip()
    if node.type == "test_operator" or not node.is_named:
        tokens.append(_Token(raw))
        return
    if raw in ("!", "-a", "-o", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "==", "=", "!="):
        tokens.append(_Token(raw))
        return
    if double or node.type in ("string", "raw_string"):
        value = expand_text(machine, state, document, node)
        tokens.append(_Token("", value, double and node.type not in ("string", "raw_string")))
        return
    for item in expand_words(machine, state, document, (node,)):
        tokens.append(_Token("", item.text))


def _evaluate_tokens(machine: Machine, state: State, tokens: list[_Token]) -> bool | None:
    parser = _TestParser(machine, state, tokens)
    try:
        result = parser.parse_or()
    except IndexError:
        return None
    return result if parser.at >= len(tokens) else None


class _TestParser:
    def __init__(self, machine: Machine, state: State, tokens: list[_Token]) -> None:
        self._script = machine.main_file.text
        self._state = state
        self._tokens = tokens
        self.at = 0
        self._depth = 0

    def _operator(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self._tokens[index].operator if index < len(self._tokens) else ""

    def parse_or(self) -> bool | None:
        result = self._parse_and()
        while self._operator() in ("||", "-o") and self.at:
            self.at += 1
            result = _or(result, self._parse_and())
        return result

    def _parse_and(self) -> bool | None:
        result = self._parse_not()
        while self._operator() in ("&&", "-a"):
            self.at += 1
            result = _and(result, self._parse_not())
        return result

    def _parse_not(self) -> bool | None:
        negations = 0
        while self._operator() == "!":
            negations += 1
            self.at += 1
        result = self._parse_primary()
        if result is None or negations % 2 == 0:
            return result
        return not result

    def _parse_primary(self) -> bool | None:
        operator = self._operator()
        if operator == "(":
            self._depth += 1
            if self._depth > 12:
                raise IndexError
            self.at += 1
            result = self.parse_or()
            if self._operator() == ")":
                self.at += 1
            self._depth -= 1
            return result
        if operator in _UNARY_OPERATORS and not (
            self._operator(1) in _NUMERIC_OPERATORS or self._operator(1) in _STRING_OPERATORS
        ):
            self.at += 1
            if self.at >= len(self._tokens) or self._tokens[self.at].is_operator:
                # The operand expanded to nothing: with X empty, `[ -n $X ]` and `[ -z $X ]` are both true.
                return True if operator in ("-n", "-z") else None
            operand = self._tokens[self.at].text
            self.at += 1
            return self._decide_unary(operator, operand)
        left = self._tokens[self.at]
        self.at += 1
        operator = self._operator()
        if operator in _NUMERIC_OPERATORS or operator in _STRING_OPERATORS:
            self.at += 1
            right = self._tokens[self.at]
            self.at += 1
            return _compare(operator, left.text, right)
        if left.is_operator:
            return True
        empty = self._is_empty(left.text)
        return None if empty is None else not empty

    def _is_empty(self, text: Text) -> bool | None:
        """Return whether a text is empty; where it is assumed, one that the caller may set, or else the script, is."""
        empty = is_empty(text)
        origin = text[0].origin if len(text) == 1 and isinstance(text[0], Hole) else None
        if empty is None and origin is not None and origin == FROM_CALLER and origin.variable:
            is_assigned = re.search(rf"\b{re.escape(origin.variable)}=", self._script) is not None
            return True if is_assigned and assume_nothing_given(origin.variable) else None
        return empty

    def _decide_unary(self, operator: str, operand: Text) -> bool | None:
        if operator in ("-z", "-n"):
            empty = self._is_empty(operand)
            return None if empty is None else empty == (operator == "-z")
        if operator == "-v":
            name = possible_texts(operand)
            slot = self._state.get(name[0]) if name and len(name) == 1 else None
            return None if slot is None else slot.is_set
        return None


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _compare(operator: str, left: Text, right: _Token) -> bool | None:
    lefts, rights = possible_texts(left), possible_texts(right.text)
    if lefts is None or rights is None:
        return None
    results: set[bool] = set()
    for left_text, right_text in itertools.product(lefts, rights):
        verdict = _compare_texts(operator, left_text, right_text, right.pattern)
        if verdict is None:
            return None
        results.add(verdict)
    return results.pop() if len(results) == 1 else None


def _compare_texts(operator: str, left: str, right: str, pattern: bool) -> bool | None:
    if operator in _NUMERIC_OPERATORS:
        try:
            return _NUMERIC_OPERATORS[operator](int(left.strip()[:20]), int(right.strip()[:20]))
        except ValueError:
            return None
    if operator in ("=", "==", "!="):
        try:
            same = parameter_syntax.matches(right, left) if pattern else left == right
        except ValueError:
            return None
        return same == (operator != "!=")
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    return None


def case_matches(subject: Text, pattern: Text, *, quoted: bool) -> bool | None:
    """Return whether a `case` pattern matches; None when that depends on unknown values."""
    if not quoted and spelling_of(pattern) == "*":
        return True
    subjects, candidates = possible_texts(subject), possible_texts(pattern)
    if subjects is None or candidates is None:
        return None
    try:
        results = {
            text == candidate if quoted else parameter_syntax.matches(candidate, text)
            for text, candidate in itertools.product(subjects, candidates)
        }
    except ValueError:
        return None
    return results.pop() if len(results) == 1 else None


#: Alternatives of one command that are followed.
MAX_CHOICES = 6
#: Words at the start of a command that are searched for its program: `srun --label $LAUNCHER train.py`.
_MAX_WORDS = 4
_LAUNCHER = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|torchrun|torchx|deepspeed|accelerate|srun|mpirun|mpiexec\S*|horovodrun|fleetrun|paddle"
    r"|colossalai|composer|ray|uv|conda|numactl|env|nohup|sudo|singularity|apptainer|docker|bash|sh|jsrun|fabric)\s"
)


class Choice(NamedTuple):
    """One alternative of a command: the variables that hold it, and its condition in words."""

    variables: dict[str, Slot]
    condition: str


def program_choices(machine: Machine, state: State, document: Document, written: Sequence[Node]) -> list[Choice]:
    """Return the alternatives of a command whose program depends on a branch; empty if it does not.

    Other variables that the same branches set get the value of the same branch.

    Args:
        machine: the evaluation.
        state: the shell as the command sees it.
        document: the script.
        written: the words of the command as written.
    """
    if machine.quiet:
        return []
    for index, word in enumerate(written[:_MAX_WORDS]):
        for name in _variables_in(document, word):
            slot = state.get(name)
            if slot is None:
                continue
            found = _alternatives(slot)
            if len(found) > 1 and (index == 0 or any(_starts_with_launcher(option) for option in found)):
                machine.step(len(found))
                return list(_choices(state, name, slot, found))
    return []


def _choices(state: State, name: str, slot: Slot, slots: Sequence[Slot]) -> Iterator[Choice]:
    branch = _branch_of(state, slot)
    same = [other for other in state.variables.values() if branch and other.condition == branch]
    # A value keeps its alternatives where it is used in another one (`CMD="$L train.py"`), but not its place.
    pieces = (piece for other in (*same, slot) for piece in other.text if isinstance(piece, Alt))
    choices = {piece.options for piece in pieces if len(piece.options) == len(slots)}
    for index, option in enumerate(slots[:MAX_CHOICES]):
        variables = {}
        for other, of_other in state.variables.items():
            if of_other in same and len(of_other.branches) == len(slots):
                variables[other] = replace(of_other.branches[index], condition=of_other.condition)
            elif any(isinstance(piece, Alt) and piece.options in choices for piece in of_other.text):
                variables[other] = replace(of_other, text=_with_alternative(of_other.text, choices, index))
        variables[name] = replace(option, text=_with_alternative(option.text, choices, index))
        yield Choice(variables, _condition(name, option))


def _with_alternative(text: Text, choices: Collection[tuple[Text, ...]], index: int) -> Text:
    """Return the text with each of `choices` replaced by one alternative."""
    return tuple(
        inner
        for piece in text
        for inner in (piece.options[index] if isinstance(piece, Alt) and piece.options in choices else (piece,))
    )


def _branch_of(state: State, slot: Slot) -> str:
    """Return the condition of the branches that the alternatives of a variable come from.

    A variable built from another one (`CMD="$L train.py"`) has none of its own.
    """
    if slot.condition:
        return slot.condition
    choices = [piece for piece in slot.text if isinstance(piece, Alt)][:1]
    for other in state.variables.values():
        if other.condition and choices and [*other.text] == choices:
            return other.condition
    return ""


def _variables_in(document: Document, word: Node) -> Iterator[str]:
    """Yield the variable that a word begins with: `$L`, `${L}`, `"${L[@]}"`."""
    inner = word
    while inner.type in ("command_name", "string", "concatenation") and inner.named_child_count:
        inner = inner.named_children[0]
    if inner.type not in ("simple_expansion", "expansion"):
        return
    for child in inner.named_children[:1]:
        target = child.child_by_field_name("name") if child.type == "subscript" else child
        if target is not None and target.type == "variable_name":
            yield document.text_of(target)


def _alternatives(slot: Slot) -> tuple[Slot, ...]:
    """Return the values that a variable has after different branches, if they may begin with different programs."""
    if slot.branches:
        return tuple(replace(branch, condition=slot.condition) for branch in slot.branches)
    at = next((index for index, piece in enumerate(slot.text) if isinstance(piece, Alt)), None)
    if at is None or not _is_before_program(slot.text[:at]):
        return ()
    choice = slot.text[at]
    if not isinstance(choice, Alt) or not any(_holds_blank(option) for option in choice.options):
        return ()
    return tuple(replace(slot, text=(*slot.text[:at], *option, *slot.text[at + 1 :])) for option in choice.options)


def _is_before_program(text: Text) -> bool:
    """Return whether the alternatives are preceded only by blanks, or by one word that itself starts a program."""
    before = known(text)
    return before is not None and (not before.strip() or _LAUNCHER.match(before.strip() + " ") is not None)


def _holds_blank(text: Text) -> bool:
    return not text or any(isinstance(piece, Lit) and any(c in " \t\n" for c in piece.text) for piece in text)


def _starts_with_launcher(slot: Slot) -> bool:
    return _LAUNCHER.match(_format_text(slot) + " ") is not None


def _format_text(slot: Slot) -> str:
    if slot.kind is Kind.ARRAY:
        return " ".join(item.known or "?" for item in slot.items)
    return slot.spelling().strip()


def _condition(name: str, slot: Slot) -> str:
    shown = " ".join(_format_text(slot).split())
    return f"{name} is {shown[:80]!r}" if shown else f"{name} is empty"
