"""The places that arguments of calls reach: `stem.function:index`. By them the files of a job are joined."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.outline import dotted

#: Functions that start one process a rank; it gets its rank, and then `args`.
SPAWNS = frozenset(("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", "paddle.distributed.spawn"))


def places_given(module: Module, name: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls that give a variable to a function of this or another file, each with the place that it reaches."""
    for call in module.calls if name else ():
        target, items = _target(module, call)
        if isinstance(target, ast.Name):
            for index, item in enumerate(items):
                if item is not None and dotted(item) == name:
                    yield call, f"{_function(module, target)}:{index}"


def _target(module: Module, call: ast.Call) -> tuple[ast.expr | None, Sequence[ast.expr | None]]:
    """The function that a call starts, and its arguments; the rank that a spawn gives first is None."""
    if module.called(call) not in SPAWNS:
        return call.func, call.args
    function, given = argument(call, "fn", 0), argument(call, "args", 1)
    listed = value_of(given) if given is not None else None
    items = listed.elts if isinstance(listed, (ast.Tuple, ast.List)) else []
    return value_of(function) if function is not None else None, [None, *items]


def place_of(module: Module, variable: ast.expr) -> str:
    """The place of a function's own positional argument; empty for any other variable."""
    function = module.outline.function_of(variable)
    if function is None or not isinstance(variable, ast.Name):
        return ""
    names = [each.arg for each in function.args.args]
    if variable.id not in names or variable.id in module.outline.assignments(function):
        return ""
    return f"{PurePosixPath(module.file.path).stem}.{function.name}:{names.index(variable.id)}"


def _function(module: Module, target: ast.Name) -> str:
    """`stem.function`: of the file that it is imported from, or of this one."""
    name = module.name(target)
    if not module.outline.functions(target.id) and "." in name:
        return ".".join(name.split(".")[-2:])
    return f"{PurePosixPath(module.file.path).stem}.{target.id}"
