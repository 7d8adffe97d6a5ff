"""What a script assigns to the attributes of an object: `strategy.a_sync = True`."""

from __future__ import annotations

import ast

from preflight.lazy.dataclasses import dataclass
from preflight.sources.python.module import Module
from preflight.sources.python.outline import dotted


@dataclass(frozen=True, slots=True)
class Assigned:
    """One assignment: the attribute's name, what it is given, and the statement."""

    name: str
    value: ast.expr
    at: ast.Assign


def attributes(module: Module) -> dict[str, list[Assigned]]:
    """By the object's dotted name, all assignments to its attributes in source order."""
    found: dict[str, list[Assigned]] = {}
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                owner = dotted(target.value)
                if owner:
                    found.setdefault(owner, []).append(Assigned(target.attr, node.value, node))
    return found


def enclosing(module: Module, node: ast.AST) -> ast.AST:
    """The function or module a node stands in: order means something only within one."""
    current = module.parent(node)
    while current is not None and not isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        current = module.parent(current)
    return current if current is not None else module.tree
