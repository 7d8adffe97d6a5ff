"""Evaluates the conditions that custom resources must satisfy, as `tools/tables/conditions.py` describes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from preflight.sources.formats.structured import Kind, Node

Condition = list[Any]
_PLACEHOLDER = re.compile(r"\$[A-Za-z_{(]|\{\{|<[A-Za-z][^<>]*>|@\w+@|%\w+%|^_*[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_*$")


def is_filled_in(node: Node) -> bool:
    """Whether a string has a placeholder: `$NODES`, `job-${NAME}`, `<nodes>`, `PLACEHOLDER_NODES`."""
    return node.kind is Kind.SCALAR and isinstance(node.value, str) and _PLACEHOLDER.search(node.value) is not None


def is_open(node: Node) -> bool:
    """Whether a value is filled in later, or cannot be read."""
    return node.kind in (Kind.TEMPLATE, Kind.BROKEN) or is_filled_in(node)


def holds(node: Node, condition: Condition) -> bool | Node:
    """Whether a value meets a condition; or the value, filled in later, on which that depends."""
    name, *operands = condition
    if is_open(node):
        return node
    if name == "not":
        inner = holds(node, operands[0])
        return inner if isinstance(inner, Node) else not inner
    if name in ("and", "or"):
        found = [holds(node, operand) for operand in operands]
        return _joined(found, decisive=name == "or")
    if name == "count":
        return _counted(node, *operands)
    there = _at(node, operands[0])
    if there is not None and is_open(there):
        return True if name == "has" else there
    if name == "has":
        return there is not None
    if name == "in":
        return (there.value if there is not None and there.kind is Kind.SCALAR else None) in operands[1]
    if there is None:
        return name in ("each", "unique", "last-only", "each-same-size") or (name == "size" and not operands[1])
    if name == "matches":
        return isinstance(there.value, str) and re.search(operands[1], there.value) is not None
    if name == "at-least":
        return isinstance(there.value, (int, float)) and there.value >= operands[1]
    if name == "size":
        size = _size(there)
        return operands[1] <= size and (operands[2] is None or size <= operands[2])
    return _of_items(name, node, there, operands[1:])


def _of_items(name: str, node: Node, there: Node, operands: list[Any]) -> bool | Node:
    if name in ("each", "some"):
        return _joined([holds(item, operands[0]) for item in there.items], decisive=name == "some")
    if name == "each-same-size":
        return _joined([_same_size(item.at(operands[0]), node.at(operands[1])) for item in there.items], decisive=False)
    if name == "last-only":
        return _last_only(there.items, *operands)
    if name == "unique":
        values = [item.value for item in there.items if item.kind is Kind.SCALAR and not is_open(item)]
        if len(values) != len(set(values)):
            return False
        return next((item for item in there.items if is_open(item)), True)
    raise ValueError(f"{name} is not a condition")


def _last_only(items: Sequence[Node], key: str, value: Any) -> bool | Node:
    """Whether no item has this value, or the last one has it."""
    found = [_equals(item, key, value) for item in items]
    if found[-1:] == [True] or not any(match is not False for match in found[:-1]):
        return True
    if found[-1] is False and True in found:
        return False
    return next(match for match in found if isinstance(match, Node))


def _equals(item: Node, key: str, value: Any) -> bool | Node:
    """Whether the item has this value at the key; or the value, if it is filled in later."""
    there = item if is_open(item) else item.at(key)
    if there is not None and is_open(there):
        return there
    return there is not None and there.text() == value


def _joined(found: list[bool | Node], *, decisive: bool) -> bool | Node:
    """The result of and (`decisive` is False) or or (True)."""
    if any(item is decisive for item in found):
        return decisive
    return next((item for item in found if isinstance(item, Node)), not decisive)


def _counted(node: Node, paths: list[str], minimum: int, maximum: int) -> bool:
    return minimum <= sum(_at(node, path) is not None for path in paths) <= maximum


def _at(node: Node, path: str) -> Node | None:
    """The value at a path; None if it is absent or null."""
    found = node.at(*path.split(".")) if path else node
    return None if found is None or (found.kind is Kind.SCALAR and found.value is None) else found


def _size(node: Node) -> int:
    if node.kind is Kind.SCALAR:
        return len(str(node.value))
    if node.kind is Kind.ARRAY:
        return len(node.items)
    return sum(member.node.kind is not Kind.SCALAR or member.node.value is not None for member in node.in_force)


def _same_size(one: Node | None, other: Node | None) -> bool | Node:
    for node in (one, other):
        if node is not None and is_open(node):
            return node
    if one is None or other is None or one.kind is not Kind.ARRAY or other.kind is not Kind.ARRAY:
        return True
    return len(one.items) == len(other.items)
