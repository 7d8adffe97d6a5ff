"""Decides `[ ... ]`, `[[ ... ]]`, `test` and `case` patterns; None unless all alternatives agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from preflight.sources.shell import glob_patterns
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.expansion import expand_text, expand_words
from preflight.sources.shell.shell_document import Document, Text
from preflight.sources.shell.state import State
from preflight.sources.shell.words import Field, is_empty, possible_texts, spelling_of

if TYPE_CHECKING:
    from tree_sitter import Node

_COMPOUND_NODES = frozenset(
    (
        "unary_expression",
        "binary_expression",
        "parenthesized_expression",
        "negation_expression",
        "ternary_expression",
        "postfix_expression",
    )
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
    """Whether a `test_command` node holds; None when that depends on unknown values."""
    machine.step()
    double = document.text_of(node).lstrip().startswith("[[")
    tokens: list[_Token] = []
    _flatten(machine, state, document, node.children[1:-1], tokens, double)
    return _evaluate_tokens(machine, state, tokens, double)


def decide_words(machine: Machine, state: State, fields: Sequence[Field]) -> bool | None:
    """Whether `test ...` holds, given its words; None when that depends on unknown values."""
    tokens = []
    for item in fields:
        if item.many:
            return None
        plain = item.known
        is_operator = plain is not None and (
            plain in _STRING_OPERATORS or plain in _NUMERIC_OPERATORS or plain in ("!", "(", ")", "-a", "-o")
        )
        operator = plain or ""
        if not is_operator and plain is not None and plain in _UNARY_OPERATORS:
            is_operator = True
        tokens.append(_Token(operator if is_operator else "", item.text))
    return _evaluate_tokens(machine, state, tokens, False)


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
        if node.type in _COMPOUND_NODES:
            waiting = [node]
            # A chain of && is nested to the left as deep as it is long, so it is walked without recursion.
            while waiting:
                current = waiting.pop()
                if current.type in _COMPOUND_NODES:
                    waiting.extend(reversed(current.children))
                else:
                    _token(machine, state, document, current, tokens, double)
        else:
            _token(machine, state, document, node, tokens, double)


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


def _evaluate_tokens(machine: Machine, state: State, tokens: list[_Token], double: bool) -> bool | None:
    parser = _TestParser(state, tokens)
    try:
        result = parser.parse_or()
    except IndexError:
        return None
    return result if parser.at >= len(tokens) else None


class _TestParser:
    def __init__(self, state: State, tokens: list[_Token]) -> None:
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
        empty = is_empty(left.text)
        return None if empty is None else not empty

    def _decide_unary(self, operator: str, operand: Text) -> bool | None:
        if operator in ("-z", "-n"):
            empty = is_empty(operand)
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
            same = glob_patterns.matches(right, left) if pattern else left == right
        except ValueError:
            return None
        return same == (operator != "!=")
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    return None


def case_matches(subject: Text, pattern: Text, *, quoted: bool) -> bool | None:
    """Whether a `case` pattern matches; None when that depends on unknown values."""
    if not quoted and spelling_of(pattern) == "*":
        return True
    subjects, candidates = possible_texts(subject), possible_texts(pattern)
    if subjects is None or candidates is None:
        return None
    try:
        results = {
            text == candidate if quoted else glob_patterns.matches(candidate, text)
            for text, candidate in itertools.product(subjects, candidates)
        }
    except ValueError:
        return None
    return results.pop() if len(results) == 1 else None
