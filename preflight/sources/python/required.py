"""Which rank variables a script cannot do without: `os.environ["LOCAL_RANK"]`, read on every way through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.job import Claim
from preflight.sources.python.module import Module

_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
#: Functions that call functions are followed this far.
_DEEPEST = 5
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def claims(module: Module) -> Iterator[Claim]:
    """One claim for each such variable, at the first place where it is read."""
    found: dict[str, ast.Subscript] = {}
    given: set[str] = set()
    for node in module.nodes(ast.Subscript):
        if module.name(node.value) != "os.environ" or not isinstance(node.slice, ast.Constant):
            continue
        name = node.slice.value
        if name not in _RANKS:
            continue
        if isinstance(node.ctx, ast.Store):
            given.add(name)
        elif isinstance(node.ctx, ast.Load) and _always_reached(module, node):
            found.setdefault(name, node)
    given.update(_filled(module))
    for name in sorted(set(found) - given):
        yield module.claim("required_variable", name, found[name])


def _filled(module: Module) -> Iterator[str]:
    """Variables that the script gives a value to if they have none."""
    for call in module.calls:
        first = call.args[0] if call.args else None
        if module.called(call) in ("os.environ.setdefault", "os.putenv") and isinstance(first, ast.Constant):
            yield str(first.value)
        elif module.called(call) == "os.environ.update":
            yield from _RANKS


def _always_reached(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether nothing decides, or catches, or may never call what a node stands in."""
    if depth > _DEEPEST or module.condition(node):
        return False
    parent = module.parent(node)
    while parent is not None and not isinstance(parent, _FUNCTIONS):
        if isinstance(parent, (ast.Try, ast.ClassDef, ast.Lambda, ast.BoolOp, ast.While)):
            return False
        parent = module.parent(parent)
    if parent is None:
        return True
    calls = [call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == parent.name]
    return bool(calls) and all(_always_reached(module, call, depth + 1) for call in calls)
