"""Assignments to the attributes of an object: `strategy.a_sync = True`."""

from __future__ import annotations

import ast
from typing import NamedTuple

from preflight.sources.python.module import Module
from preflight.sources.python.outline import dotted


class Assigned(NamedTuple):
    """One assignment: the attribute's name, its value, and the statement."""

    name: str
    value: ast.expr
    at: ast.Assign


def attributes(module: Module) -> dict[str, list[Assigned]]:
    """All assignments to attributes, in source order, by the object's dotted name."""
    found: dict[str, list[Assigned]] = {}
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                owner = dotted(target.value)
                if owner:
                    found.setdefault(owner, []).append(Assigned(target.attr, node.value, node))
    return found


def enclosing(module: Module, node: ast.AST) -> ast.AST:
    """The function or module around a node, within which the order of statements is meaningful."""
    current = module.parent(node)
    while current is not None and not isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        current = module.parent(current)
    return current if current is not None else module.tree
