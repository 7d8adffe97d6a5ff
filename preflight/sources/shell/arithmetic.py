"""Arithmetic of `$(( ))`, `(( ))`, `let` and array indices: 64-bit integers, computed for every alternative."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Mapping

from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.lookup import look_up
from preflight.sources.shell.shell_document import Place, Text
from preflight.sources.shell.state import Kind, Slot, State
from preflight.sources.shell.words import computed_text, hole, is_count, is_empty, possible_texts, reasons

_TOKEN = re.compile(
    r"\s*(?:(\$\{?\w+\}?|[A-Za-z_]\w*(?:\[\w+\])?)|(\d+#\w+|0[xX][0-9A-Fa-f]+|\d+)"
    r"|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&|^?:()]))"
)
_ASSIGN = re.compile(r"\s*([A-Za-z_]\w*)\s*(\*\*|<<|>>|[-+*/%&|^])?=(?!=)\s*(.+)", re.DOTALL)
_COUNT = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
_MAX_LENGTH = 500
_MAX_COMBINATIONS = 64
_MAX_DEPTH = 16
_BITS = 1 << 64


class NotArithmetic(Exception):
    """The text is not an expression that this module supports."""


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise NotArithmetic("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _power(left: int, right: int) -> int:
    if right < 0 or right > 64:
        raise NotArithmetic("exponent out of range")
    return int(left**right)


_BINARY: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a) or bool(b))},
    {"&&": lambda a, b: int(bool(a) and bool(b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divide, "%": lambda a, b: a - b * _divide(a, b)},
    {"**": _power},
)


_LEVELS = {operation: level for level, signs in enumerate(_BINARY) for operation in signs}


def evaluate_text(machine: Machine, state: State, inner: Text, place: Place, spelling: str) -> Text:
    """Evaluate an expression whose text may have alternatives."""
    found = possible_texts(inner)
    if found is None:
        return hole(f"computed from {reasons(inner)}", place, spelling)
    results: list[str] = []
    for expression in found:
        result = evaluate_expression(machine, state, expression, place)
        choices = possible_texts(result)
        if choices is None:
            return hole(reasons(result), place, spelling)
        results.extend(choices)
    return computed_text(results, place, spelling)


def evaluate_expression(machine: Machine, state: State, raw: str, place: Place) -> Text:
    """Evaluate comma-separated expressions and return the last value as a string; assignments take effect."""
    if len(raw) > _MAX_LENGTH:
        return hole("an expression that is too long to follow", place, raw[:40])
    result: Text = computed_text(["0"], place, raw)
    for expression in raw.split(","):
        machine.step()
        result = _evaluate_single(machine, state, expression, place)
    return result


def _evaluate_single(machine: Machine, state: State, raw: str, place: Place) -> Text:
    counted = _COUNT.fullmatch(raw)
    if counted is not None:
        name = counted.group(1) or counted.group(4)
        operation = (counted.group(2) or counted.group(3))[0]
        before = _variable_text(machine, state, name, place)
        after = _evaluate_single(machine, state, f"{name} {operation} 1", place)
        state.put(name, Slot(Kind.TEXT, place, after))
        return before if counted.group(1) else after
    assigned = _ASSIGN.fullmatch(raw)
    if assigned is not None:
        name, operation, right = assigned.groups()
        value = _evaluate_single(machine, state, f"{name} {operation} ({right})" if operation else right, place)
        state.put(name, Slot(Kind.TEXT, place, value))
        return value
    try:
        tokens = _tokenize(raw)
        names = {token for token in tokens if token[0] == "$" or token[0].isalpha() or token[0] == "_"}
        values: dict[str, list[str]] = {}
        for name in sorted(names):
            text = _variable_text(machine, state, name.strip("${}"), place)
            choices = possible_texts(text)
            if choices is None:
                return hole(f"computed from {reasons(text)}", place, raw)
            values[name] = choices
        results: list[str] = []
        for count, combination in enumerate(itertools.product(*values.values())):
            if count >= _MAX_COMBINATIONS:
                return hole("an expression with too many alternatives", place, raw)
            numbers = {name: _parse_number(item) for name, item in zip(values, combination, strict=True)}
            results.append(str(_Parser(tokens, numbers).parse()))
        return computed_text(results, place, raw)
    except NotArithmetic as error:
        return hole(f"an expression that cannot be computed: {error}", place, raw)


def _variable_text(machine: Machine, state: State, name: str, place: Place) -> Text:
    base, _, index = name.partition("[")
    slot = look_up(machine, state, base, place, f"${name}")
    if index and slot.kind is Kind.ARRAY and is_count(index[:-1]):
        at = int(index[:-1])
        if at < len(slot.items) and not any(item.many for item in slot.items[: at + 1]):
            return slot.items[at].text
        return hole(f"${name}", place, name)
    text = slot.scalar()
    if not slot.is_set or is_empty(text):
        return computed_text(["0"], place, f"${name}")
    return text


def _tokenize(raw: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    raw = raw.strip().replace('"', "")
    while at < len(raw):
        match = _TOKEN.match(raw, at)
        if match is None or match.end() == at:
            raise NotArithmetic(f"{raw[at : at + 20]!r} is not understood")
        tokens.append(match.group(1) or match.group(2) or match.group(3))
        at = match.end()
    return tokens


def _parse_number(item: str) -> int:
    """Parse a number as bash does: `0x` and `0` prefixes, `base#digits`."""
    item = item.strip()
    try:
        if not item:
            return 0
        if "#" in item:
            base, _, digits = item.partition("#")
            return int(digits, int(base))
        operation = -1 if item.startswith("-") else 1
        digits = item.lstrip("+-")
        if len(digits) > 20:
            raise NotArithmetic("the number is too large")
        if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
            return operation * int(digits, 8)
        return operation * int(digits, 0)
    except ValueError:
        raise NotArithmetic(f"{item[:20]!r} is not a whole number") from None


class _Parser:
    def __init__(self, tokens: list[str], values: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._values = values
        self._at = 0
        self._depth = 0

    def parse(self) -> int:
        if not self._tokens:
            return 0
        value = self._choice()
        if self._at < len(self._tokens):
            raise NotArithmetic(f"unexpected {self._tokens[self._at]!r}")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _choice(self) -> int:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotArithmetic("it is nested too deeply")
        condition = self._binary(0)
        if self._peek() == "?":
            self._take()
            yes = self._choice()
            if self._take() != ":":
                raise NotArithmetic("':' is missing")
            no = self._choice()
            condition = yes if condition else no
        self._depth -= 1
        return condition

    def _binary(self, weakest: int) -> int:
        left = self._unary()
        while (level := _LEVELS.get(self._peek(), -1)) >= weakest:
            operation = self._take()
            # ** groups from the right; 2**3**2 is 2**9.
            right = self._binary(level if operation == "**" else level + 1)
            left = _wrap(_BINARY[level][operation](left, right))
        return left

    def _unary(self) -> int:
        signs: list[str] = []
        while self._peek() in ("-", "+", "!", "~"):
            signs.append(self._take())
        token = self._take()
        if token == "(":
            value = self._choice()
            if self._take() != ")":
                raise NotArithmetic("')' is missing")
        elif token in self._values:
            value = self._values[token]
        elif token:
            value = _parse_number(token)
        else:
            raise NotArithmetic("an operand is missing")
        for operation in reversed(signs):
            value = {"-": -value, "+": value, "!": int(not value), "~": ~value}[operation]
        return value


def _wrap(value: int) -> int:
    value &= _BITS - 1
    return value - _BITS if value >= _BITS >> 1 else value
