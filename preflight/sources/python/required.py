"""Rank variables that a script requires: `os.environ["LOCAL_RANK"]`, read on every path through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module

_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
#: Variables that people expect a launcher to set for its node; torchrun and its like do not.
_OF_NODES = frozenset({"NODE_RANK", "NNODES", "NUM_NODES", "NODE_ID"})
#: Functions that call functions are followed to this depth.
_MAX_DEPTH = 5
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def claims(module: Module) -> Iterator[Claim]:
    """One claim for each such variable, at the first location where it is read."""
    found: dict[str, ast.Subscript] = {}
    for node in module.nodes(ast.Subscript):
        if module.name(node.value) != "os.environ" or not isinstance(node.slice, ast.Constant):
            continue
        name = node.slice.value
        if name not in _RANKS and name not in _OF_NODES:
            continue
        if isinstance(node.ctx, ast.Load) and always_reached(module, node):
            found.setdefault(name, node)
    for name in sorted(set(found) - given_variables(module)):
        yield module.claim("required_variable" if name in _RANKS else "required_node_variable", name, found[name])


def given_variables(module: Module) -> frozenset[str]:
    """Variables of a launcher that the script itself sets, always or where they have no value."""
    stored = {
        str(node.slice.value)
        for node in module.nodes(ast.Subscript)
        if isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and module.name(node.value) == "os.environ"
    }
    return frozenset(stored.union(_variables_with_defaults(module)))


def _variables_with_defaults(module: Module) -> Iterator[str]:
    """Variables to which the script assigns a value if they have none."""
    for call in module.calls:
        first = call.args[0] if call.args else None
        if module.called(call) in ("os.environ.setdefault", "os.putenv") and isinstance(first, ast.Constant):
            yield str(first.value)
        elif module.called(call) == "os.environ.update":
            yield from (*_RANKS, *_OF_NODES)


def always_reached(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether a node is run unconditionally, outside a `try` and a function that may not be called."""
    if depth > _MAX_DEPTH or module.condition(node):
        return False
    parent = module.parent(node)
    while parent is not None and not isinstance(parent, _FUNCTIONS):
        if isinstance(parent, (ast.Try, ast.ClassDef, ast.Lambda, ast.BoolOp, ast.While)):
            return False
        parent = module.parent(parent)
    if parent is None:
        return True
    calls = [call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == parent.name]
    return bool(calls) and all(always_reached(module, call, depth + 1) for call in calls)
