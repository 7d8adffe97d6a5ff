"""Conditions on settings, as the tables of refusals state them: `fp16.enabled and bf16.enabled`.

The syntax is that of Python's expressions: names are keys, with dots between sections; `and`, `or`, `not`, comparisons,
`in`, arithmetic, and the functions of `_FUNCTIONS`. A name whose value is not known makes the condition unknown unless
the rest decides it. Nothing is executed: the expression is parsed and each of its nodes is evaluated here.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from preflight.model.job.value import LISTED_SECTION


class UnknownValue(Exception):
    """The condition depends on a value that is not known; which the argument names."""


#: Before a key, asks whether it stands there at all, whatever its value: `is_given(key)` in a condition.
GIVEN = "?"


class Section:
    """The value of a section: it is present, and equals nothing.

    Args:
        filled: whether the section contains anything.
    """

    def __init__(self, *, filled: bool = True) -> None:
        self.filled = filled


class Several:
    """A number that is only known to be greater than 1. A comparison that needs its value raises UnknownValue."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __gt__(self, other: Any) -> bool:
        return self._decided(other <= 1, outcome=True)

    def __ge__(self, other: Any) -> bool:
        return self._decided(other <= 2, outcome=True)

    def __lt__(self, other: Any) -> bool:
        return self._decided(other <= 2, outcome=False)

    def __le__(self, other: Any) -> bool:
        return self._decided(other <= 1, outcome=False)

    def __eq__(self, other: object) -> bool:
        return self._decided(not isinstance(other, int) or other <= 1, outcome=False)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = object.__hash__

    def _decided(self, is_decided: bool, *, outcome: bool) -> bool:
        if not is_decided:
            raise UnknownValue(self.name)
        return outcome


Lookup = Callable[[str], Any]

#: What comparisons of Python's syntax mean.
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}
_COMPARE = {**COMPARE, ast.Is: operator.is_, ast.IsNot: operator.is_not}
_COMPUTE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "is_number": lambda item: isinstance(item, int | float) and not isinstance(item, bool),
    "is_whole": lambda item: isinstance(item, int) and not isinstance(item, bool),
    "is_text": lambda item: isinstance(item, str),
    "is_list": lambda item: isinstance(item, tuple),
    "is_section": lambda item: isinstance(item, Section),
    "is_filled": lambda item: isinstance(item, Section) and item.filled,
    "of_sections": lambda item: isinstance(item, tuple) and bool(item) and set(item) == {LISTED_SECTION},
    "is_bool": lambda item: isinstance(item, bool),
    "given_or": lambda item, other: other if item is None else item,
    "number": lambda item: _number(item),
    "truth": lambda item: str(item).lower() in ("y", "yes", "t", "true", "on", "1"),
    "count_parts": lambda item: len(item.split(",")) if isinstance(item, str) else _length(item),
    "length": lambda item: _length(item),
    "are_patterns": lambda items: all(_is_pattern(item) for item in items),
    "text": str,
    "others": lambda items, known: isinstance(items, tuple) and any(item not in known for item in items),
    "matches": lambda item, pattern: isinstance(item, str) and _matches(item, pattern),
    "parts": lambda item, sign: tuple(item.split(sign)) if isinstance(item, str) else (),
    "all_match": lambda items, pattern: all(_matches(str(item), pattern) for item in items),
    "all_texts": lambda items: all(isinstance(item, str) for item in items),
    "are_unique": lambda items: len(set(items)) == len(items),
    "first_parts": lambda items, sign: tuple(str(item).partition(sign)[0] for item in items),
    "descends": lambda item: _descends(item),
    "size": lambda item: len(item) if isinstance(item, tuple) else 0,
    "rises": lambda items: isinstance(items, tuple) and _rises(items),
    "hosts": lambda item: tuple(part.partition(":")[0] for part in item.split(",")) if isinstance(item, str) else (),
    "total": lambda items: sum(items),
    "slots": lambda item: sum(int(part.partition(":")[2]) for part in item.split(",")),
    "unique": lambda items: tuple(dict.fromkeys(items)),
    "begins_another": lambda items: any(one and one != two and two.startswith(one) for one in items for two in items),
    "are_grouped": lambda items: len(list(itertools.groupby(items))) == len(set(items)),
    "words": lambda item: tuple(re.split(r"[\s,;]+", item.strip())) if isinstance(item, str) else (),
    "item_at": lambda items, place: _item_at(items, place),
    "largest": lambda items: max(items) if isinstance(items, tuple) and items else None,
    "product": lambda items: _product(items),
    "any_match": lambda items, pattern: isinstance(items, tuple) and any(_matches(str(i), pattern) for i in items),
    "among": lambda item, known: _among(item, known),
    "before": lambda items, item: items[: items.index(item)] if isinstance(items, tuple) and item in items else (),
    "mentions": lambda item, text: isinstance(item, str) and text in item,
    "any_mention": lambda items, text: isinstance(items, tuple) and any(text in str(item) for item in items),
    "is_json": lambda item: _is_json(item),
    "lower": lambda item: item.lower() if isinstance(item, str) else item,
    "occurrences": lambda item, part: item.count(part) if isinstance(item, str) else 0,
    "repeated": lambda item: _repeat(item),
    "list_length": lambda item: _list_length(item),
    "number_in": lambda item, pattern: _number_in(item, pattern),
    "as_list": lambda item: item if isinstance(item, tuple) else () if item is None else (item,),
    "overlaps": lambda items, others: any(item in others for item in items),
}


_GROUP = re.compile(r"\(([^()]{1,80})\)\*(\d{1,3})")
_LETTER = re.compile(r"(.)\*(\d{1,3})")


def _repeat(item: Any) -> Any:
    """Return a layout of layers with its repetitions written out: `Et*2|(t|)*2L` becomes `Ett|t|t|L`.

    Raises UnknownValue for anything but a short text.
    """
    if not isinstance(item, str) or len(item) > _MAX_MATCHED:
        raise UnknownValue(f"the layout {item!r}")
    item = item.replace(",", "")
    for pattern in (_GROUP, _LETTER):
        item = pattern.sub(lambda found: found[1] * int(found[2]), item)
    return item


def _list_length(item: Any) -> int:
    """Return the length of a literal list: 16 for `([0]*1+[1]*7)*2`, 8 for `list(range(0, 8))`.

    Raises UnknownValue for anything else.
    """
    if isinstance(item, tuple):
        return len(item)
    if not isinstance(item, str) or not item.strip().startswith(("[", "(", "list(range(")) or len(item) > _MAX_MATCHED:
        raise UnknownValue(f"the length of {item!r}")
    try:
        return _length_of(ast.parse(item.strip(), mode="eval").body)
    except SyntaxError:
        raise UnknownValue(f"the length of {item!r}") from None


def _length_of(node: ast.expr) -> int:
    if isinstance(node, ast.List):
        return len(node.elts)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "list" and len(node.args) == 1:
        return _length_of(node.args[0])
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
        bounds = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, int)]
        if bounds and len(bounds) == len(node.args) and 0 not in bounds[2:]:
            return len(range(*bounds))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _length_of(node.left) + _length_of(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        return _length_of(node.left) * int(node.right.value) if isinstance(node.right.value, int) else 0
    raise UnknownValue("the length of a computed list")


def _number(item: Any) -> Any:
    """Return the integer that a string spells; any other value unchanged."""
    try:
        return int(item) if isinstance(item, str) else item
    except ValueError:
        return item


def _is_json(item: str) -> bool:
    """Return whether a text is JSON."""
    try:
        json.loads(item)
    except (ValueError, RecursionError):
        return False
    return True


def _among(item: Any, known: str) -> Any:
    """Return a name if a pattern contains it. Raises UnknownValue for another name, whose meaning is unknown."""
    if isinstance(item, str) and _matches(item, known):
        return item
    raise UnknownValue(f"what {item} is")


def _product(items: Any) -> int:
    """Return the product of numbers. Raises UnknownValue for anything else."""
    if not isinstance(items, tuple) or not all(isinstance(item, int) for item in items):
        raise UnknownValue(f"the product of {items!r}")
    return math.prod(items)


def _item_at(items: Any, place: Any) -> Any:
    """Return the item at a place; None after the end. Raises UnknownValue for anything but a list and a number."""
    if not isinstance(items, tuple) or not isinstance(place, int):
        raise UnknownValue(f"item {place!r} of {items!r}")
    return items[place] if 0 <= place < len(items) else None


def _rises(items: tuple[Any, ...]) -> bool:
    """Return whether each number is greater than the previous one. Raises UnknownValue if an item is not a number."""
    if not all(isinstance(item, int | float) for item in items):
        raise UnknownValue(f"the order of {items!r}")
    return all(low < high for low, high in itertools.pairwise(items))


#: A pattern is not held against a text that is longer, since that could take long.
_MAX_MATCHED = 300


def _matches(text: str, pattern: str) -> bool:
    """Return whether the whole text matches a pattern. Raises UnknownValue for a long text."""
    if len(text) > _MAX_MATCHED:
        raise UnknownValue("the form of a long text")
    return re.fullmatch(pattern, text) is not None


def _number_in(item: Any, pattern: str) -> int | None:
    """Return the number that the group of a pattern matches in a text: 4 for `p([0-9]+)` in `d2p4`; None if there is no
    match.
    """
    found = re.search(pattern, item) if isinstance(item, str) and len(item) <= _MAX_MATCHED else None
    return int(found[1]) if found is not None else None


_RANGE = re.compile(
    r"(?:.{0,80}:)?\s{0,4}(\d{1,12}(?:\.\d{1,6})?)\s{0,4}([a-zA-Z]{0,4})\.\.\s{0,4}(\d{1,12}(?:\.\d{1,6})?)\s{0,4}([a-zA-Z]{0,4})(?::.{0,80})?"
)


def _descends(item: Any) -> bool:
    """Return whether a text gives a range, alone or between colons, whose end is below its beginning (`8..1`,
    `64GB..8GB`).
    """
    found = _RANGE.fullmatch(item.strip()) if isinstance(item, str) else None
    return found is not None and found[2].lower() == found[4].lower() and float(found[1]) > float(found[3])


#: A text that is longer is not compiled.
_MAX_PATTERN = 200


def _is_pattern(item: Any) -> bool:
    """Return whether a text is a valid regular expression; true for any other value. It is compiled but never used."""
    if not isinstance(item, str) or len(item) > _MAX_PATTERN:
        return True
    try:
        re.compile(item)
    except re.error:
        return False
    return True


def _length(item: Any) -> int:
    """Return the number of items of a list, or of characters of a text. Raises UnknownValue for anything else."""
    if isinstance(item, str | tuple):
        return len(item)
    raise UnknownValue(f"the length of {item!r}")


@functools.lru_cache(maxsize=1024)
def parse_condition(text: str) -> ast.expr:
    """Return the parsed expression. Raises SyntaxError for an invalid string."""
    return ast.parse(text.replace("\n", " ").strip(), mode="eval").body


def holds(text: str, value_of: Lookup) -> bool:
    """Return whether the condition holds.

    Args:
        value_of: the value of a key, None if it is not set; raises UnknownValue if that is unknown.

    Raises:
        UnknownValue: the condition depends on an unknown value.
    """
    return bool(evaluate(text, value_of))


def evaluate(text: str, value_of: Lookup) -> Any:
    """Return the value of an expression; arguments and errors are those of `holds`."""
    return _evaluate_node(parse_condition(text), value_of)


def _evaluate_node(node: ast.expr, value_of: Lookup) -> Any:
    name = _dotted(node)
    if name:
        return value_of(name)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple):
        return tuple(_evaluate_node(item, value_of) for item in node.elts)
    if isinstance(node, ast.BoolOp):
        return _join(node, value_of)
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate_node(node.operand, value_of)
        if isinstance(node.op, ast.Not):
            return not inner
        if not isinstance(inner, int | float):
            raise UnknownValue(f"the value of `{ast.unparse(node)}`")
        return -inner
    if isinstance(node, ast.Compare):
        return _compare(node, value_of)
    if isinstance(node, ast.BinOp):
        left, right = _evaluate_node(node.left, value_of), _evaluate_node(node.right, value_of)
        if isinstance(node.op, ast.Mult) and not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise UnknownValue(f"the value of `{ast.unparse(node)}`")
        try:
            return _COMPUTE[type(node.op)](left, right)
        except (TypeError, ArithmeticError) as error:
            raise UnknownValue(f"the value of `{ast.unparse(node)}` ({error})") from None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "is_given":
            return value_of(f"{GIVEN}{_dotted(node.args[0])}")
        return _FUNCTIONS[node.func.id](*(_evaluate_node(item, value_of) for item in node.args))
    raise ValueError(f"{ast.unparse(node)!r} is not part of a condition")


def _join(node: ast.BoolOp, value_of: Lookup) -> bool:
    """Return the result of `and` or `or` over known and unknown parts: a single part may decide it."""
    deciding = isinstance(node.op, ast.Or)
    missing: UnknownValue | None = None
    for part in node.values:
        try:
            if bool(_evaluate_node(part, value_of)) is deciding:
                return deciding
        except UnknownValue as error:
            if not deciding:
                # What stands behind it may only make sense if it holds.
                missing = missing or error
                continue
            missing = error
    if missing is not None:
        raise missing
    return not deciding


def _compare(node: ast.Compare, value_of: Lookup) -> bool:
    left = _evaluate_node(node.left, value_of)
    for sign, item in zip(node.ops, node.comparators, strict=True):
        right = _evaluate_node(item, value_of)
        try:
            if not _COMPARE[type(sign)](left, right):
                return False
        except TypeError:
            raise UnknownValue(f"whether `{ast.unparse(node)}`") from None
        left = right
    return True


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    return ""
