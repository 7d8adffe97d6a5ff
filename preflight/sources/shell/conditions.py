"""`[ ... ]`, `[[ ... ]]` and `test`: decided where every alternative agrees, otherwise left open."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from preflight.lazy.dataclasses import dataclass
from preflight.sources.shell import expand, patterns
from preflight.sources.shell.document import Document, Text
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import State
from preflight.sources.shell.text import Field, is_empty, literal, options, spelling_of

if TYPE_CHECKING:
    from tree_sitter import Node

_COMPOUND = frozenset(
    (
        "unary_expression",
        "binary_expression",
        "parenthesized_expression",
        "negation_expression",
        "ternary_expression",
        "postfix_expression",
    )
)
_NUMERIC: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_STRING = frozenset(("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef"))
_UNARY = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxzGLNORSnov")
_MOST_TOKENS = 200


@dataclass(frozen=True, slots=True)
class _Token:
    sign: str
    text: Text = ()
    pattern: bool = False

    @property
    def is_sign(self) -> bool:
        return bool(self.sign)


def decide(machine: Machine, state: State, document: Document, node: Node) -> bool | None:
    """Whether a `test_command` node holds; None when that depends on what is not known."""
    machine.step()
    double = document.of(node).lstrip().startswith("[[")
    tokens: list[_Token] = []
    _flatten(machine, state, document, node.children[1:-1], tokens, double)
    return _decided(machine, state, tokens, double)


def decide_words(machine: Machine, state: State, fields: Sequence[Field]) -> bool | None:
    """Whether `test ...` holds, given its words."""
    tokens = []
    for item in fields:
        if item.many:
            return None
        plain = item.known
        is_sign = plain is not None and (plain in _STRING or plain in _NUMERIC or plain in ("!", "(", ")", "-a", "-o"))
        sign = plain or ""
        if not is_sign and plain is not None and plain in _UNARY:
            is_sign = True
        tokens.append(_Token(sign if is_sign else "", item.text))
    return _decided(machine, state, tokens, False)


def _flatten(
    machine: Machine,
    state: State,
    document: Document,
    nodes: Sequence[Node],
    tokens: list[_Token],
    double: bool,
) -> None:
    for node in nodes:
        if len(tokens) > _MOST_TOKENS:
            return
        if node.type in _COMPOUND:
            waiting = [node]
            # Chains of && lean to the left as deep as they are long, so they are unrolled without recursion.
            while waiting:
                current = waiting.pop()
                if current.type in _COMPOUND:
                    waiting.extend(reversed(current.children))
                else:
                    _token(machine, state, document, current, tokens, double)
        else:
            _token(machine, state, document, node, tokens, double)


def _token(machine: Machine, state: State, document: Document, node: Node, tokens: list[_Token], double: bool) -> None:
    raw = document.of(node).strip()
    if node.type == "test_operator" or not node.is_named:
        tokens.append(_Token(raw))
        return
    if raw in ("!", "-a", "-o", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "==", "=", "!="):
        tokens.append(_Token(raw))
        return
    if double or node.type in ("string", "raw_string"):
        value = expand.text(machine, state, document, node)
        tokens.append(_Token("", value, double and node.type not in ("string", "raw_string")))
        return
    for item in expand.fields(machine, state, document, (node,)):
        tokens.append(_Token("", item.text))


def _decided(machine: Machine, state: State, tokens: list[_Token], double: bool) -> bool | None:
    reader = _Reader(state, tokens)
    try:
        result = reader.either()
    except IndexError:
        return None
    return result if reader.at >= len(tokens) else None


class _Reader:
    def __init__(self, state: State, tokens: list[_Token]) -> None:
        self._state = state
        self._tokens = tokens
        self.at = 0
        self._depth = 0

    def _sign(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self._tokens[index].sign if index < len(self._tokens) else ""

    def either(self) -> bool | None:
        result = self._both()
        while self._sign() in ("||", "-o") and self.at:
            self.at += 1
            result = _or(result, self._both())
        return result

    def _both(self) -> bool | None:
        result = self._not()
        while self._sign() in ("&&", "-a"):
            self.at += 1
            result = _and(result, self._not())
        return result

    def _not(self) -> bool | None:
        negations = 0
        while self._sign() == "!":
            negations += 1
            self.at += 1
        result = self._primary()
        if result is None or negations % 2 == 0:
            return result
        return not result

    def _primary(self) -> bool | None:
        sign = self._sign()
        if sign == "(":
            self._depth += 1
            if self._depth > 12:
                raise IndexError
            self.at += 1
            result = self.either()
            if self._sign() == ")":
                self.at += 1
            self._depth -= 1
            return result
        if sign in _UNARY and not (self._sign(1) in _NUMERIC or self._sign(1) in _STRING):
            self.at += 1
            if self.at >= len(self._tokens) or self._tokens[self.at].is_sign:
                # The operand expanded to nothing: `[ -n $X ]` with X empty is true, -z as well.
                return True if sign in ("-n", "-z") else None
            operand = self._tokens[self.at].text
            self.at += 1
            return self._unary(sign, operand)
        left = self._tokens[self.at]
        self.at += 1
        sign = self._sign()
        if sign in _NUMERIC or sign in _STRING:
            self.at += 1
            right = self._tokens[self.at]
            self.at += 1
            return _compare(sign, left.text, right)
        if left.is_sign:
            return True
        empty = is_empty(left.text)
        return None if empty is None else not empty

    def _unary(self, sign: str, operand: Text) -> bool | None:
        if sign in ("-z", "-n"):
            empty = is_empty(operand)
            return None if empty is None else empty == (sign == "-z")
        if sign == "-v":
            name = options(operand)
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


def _compare(sign: str, left: Text, right: _Token) -> bool | None:
    operand = right.text if not right.is_sign else literal_sign(right)
    lefts, rights = options(left), options(operand)
    if lefts is None or rights is None:
        return None
    results: set[bool] = set()
    for one, other in itertools.product(lefts, rights):
        verdict = _compared(sign, one, other, right.pattern)
        if verdict is None:
            return None
        results.add(verdict)
    return results.pop() if len(results) == 1 else None


def literal_sign(token: _Token) -> Text:
    """An operand that looks like an operator (`[ "$1" = "-n" ]`)."""
    return token.text


def _compared(sign: str, left: str, right: str, pattern: bool) -> bool | None:
    if sign in _NUMERIC:
        try:
            return _NUMERIC[sign](int(left.strip()[:20]), int(right.strip()[:20]))
        except ValueError:
            return None
    if sign in ("=", "==", "!="):
        try:
            same = patterns.matches(right, left) if pattern else left == right
        except ValueError:
            return None
        return same == (sign != "!=")
    if sign in ("<", ">"):
        return left < right if sign == "<" else left > right
    return None


def case_matches(subject: Text, pattern: Text, *, quoted: bool) -> bool | None:
    """Whether a `case` pattern matches; None when that cannot be told."""
    if not quoted and spelling_of(pattern) == "*":
        return True
    subjects, candidates = options(subject), options(pattern)
    if subjects is None or candidates is None:
        return None
    try:
        results = {
            one == other if quoted else patterns.matches(other, one)
            for one, other in itertools.product(subjects, candidates)
        }
    except ValueError:
        return None
    return results.pop() if len(results) == 1 else None


__all__ = ["case_matches", "decide", "decide_words", "literal"]
