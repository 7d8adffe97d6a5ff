"""Partly known texts, such as a path below a folder that an option sets: `{args.out}/last.pt`.

An unknown part is shown in braces, as the expression for it. Equal texts mean equal values.
"""

from __future__ import annotations

import ast
import functools
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from preflight.sources.python.simulation.values import AGREED, External, Frame, Own, Unknown, mixed

_MAX_TEXT = 300


def open_text(text: str, *parts: Any) -> Unknown:
    """Return the value for a text of parts that are not all known; what differs between ranks has none."""
    origin = mixed(*parts)
    if isinstance(origin, Own) or not text or len(text) > _MAX_TEXT:
        return origin
    made = Unknown(text=text)
    made.is_agreed = origin is AGREED
    return made


def text_of(value: Any, node: ast.expr | None = None, function: ast.AST | None = None) -> str:
    """Return a value as a part of a text; empty if it may differ between ranks or change soon.

    Args:
        node: the expression that gives the value.
        function: the function that contains `node`; None outside of all functions, and where the name of a variable
            says nothing about its value.
    """
    if isinstance(value, (str, int, float)):
        return str(value)
    if not isinstance(value, (Unknown, External)) or isinstance(mixed(value), Own):
        return ""
    if isinstance(value, Unknown) and value.text:
        return value.text
    if isinstance(value, External):
        path = value.attributes.get("(path)")
        if path is not None:
            return text_of(path)
        return _braced(ast.unparse(value.call)) if value.call is not None else _braced(value.name)
    if isinstance(node, ast.Attribute):
        return _braced(ast.unparse(node))
    if isinstance(node, ast.Name) and function is not None and len(assigned_values(function).get(node.id, ())) <= 1:
        return _braced(f"{getattr(function, 'lineno', 0)}:{node.id}")
    return ""


def function_of(frame: Frame) -> ast.AST | None:
    """Return the function whose names a frame has."""
    return frame.function.node if frame.function is not None else None


def joined(values: Sequence[Any], nodes: Sequence[ast.expr], frame: Frame) -> Unknown:
    """Return `os.path.join` of values, some of which are unknown."""
    texts = _texts(values, nodes, frame)
    return open_text(posixpath.join(*texts) if texts and all(texts) else "", *values)


def added(values: Sequence[Any], nodes: Sequence[ast.expr], frame: Frame) -> Unknown:
    """Concatenate texts."""
    texts = _texts(values, nodes, frame)
    is_known = all(text or value == "" for text, value in zip(texts, values, strict=False))
    return open_text("".join(texts) if is_known else "", *values)


def _texts(values: Sequence[Any], nodes: Sequence[ast.expr], frame: Frame) -> list[str]:
    if len(values) != len(nodes):
        return []
    return [text_of(value, node, function_of(frame)) for value, node in zip(values, nodes, strict=True)]


def _braced(written: str) -> str:
    return "{" + written.replace("/", "|") + "}"


@functools.lru_cache(maxsize=64)
def assigned_values(function: ast.AST) -> Mapping[str, list[ast.expr | None]]:
    """Return the values that a function assigns to each of its names, in order; None for other assignments."""
    values = {
        id(node.targets[0]): node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, []).append(values.get(id(node)))
    return found
