"""The arguments of well-known calls in modules that a script imports, where the script certainly comes to them.

A module is read for what the script uses of it: the functions that it calls, the methods of the classes of which it
makes objects, and what these call in turn. Calls under a condition, or after a return, are not followed: which of two
functions runs is often decided by how the job was started. What other functions of the module do concerns other
scripts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from preflight.model.job import WHOLE_JOB, Claim, Strength
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python import called_settings, dataset_devices, imports
from preflight.sources.python.environment import always_reached, is_left_before
from preflight.sources.python.module import Module, last, parse_silently
from preflight.sources.python.outline import Function

#: Characters. Larger modules are libraries, of which a script uses a small part.
_MAX_LENGTH = 100_000
#: Methods that run wherever an object is made or used.
_ALWAYS = frozenset(("__init__", "__post_init__", "__enter__", "__call__", "__getitem__", "forward", "training_step"))


class Unit(NamedTuple):
    """A function or method of a module.

    Args:
        name: of the function, without its class.
        owner: the name of its class; empty for a function.
        calls: the last names of what it certainly calls.
        claims: what the script's readers of calls and datasets state of it.
    """

    name: str
    owner: str
    calls: frozenset[str]
    claims: tuple[Claim, ...]


def claims(module: Module) -> Iterator[Claim]:
    """The claims of the functions and methods of imported modules to which a script certainly comes.

    They are weaker than those of the script itself.
    """
    sure = [call for call in module.calls if always_reached(module, call) and not is_left_before(module, call)]
    called = frozenset(last(module.called(call)) for call in sure)
    names = {tuple(module.called(call).strip(".").split(".")) for call in sure if module.is_imported(_first(call))}
    for reference in imports.references(module, ""):
        file = module.files.read(reference.target)
        stem = "/" + reference.target.removesuffix(".py").removesuffix("/__init__")
        # `package.module.Class`, or a method of it
        used = {
            parts[length]
            for parts in names
            for length in range(1, len(parts))
            if stem.endswith("/" + "/".join(parts[:length]))
        }
        if used and isinstance(file, SourceFile) and len(file.text) <= _MAX_LENGTH:
            for unit in _reached(_units(file, module.files), used, called):
                yield from (replace(claim, strength=Strength.CONFIG) for claim in unit.claims)


def _first(call: ast.Call) -> str:
    """The first part of the name that a call is written with; empty for a call of something else."""
    at: ast.expr = call.func
    while isinstance(at, ast.Attribute):
        at = at.value
    return at.id if isinstance(at, ast.Name) else ""


#: The units of the modules of one tree of files, by path and hash.
_READ: dict[tuple[str, str], tuple[Unit, ...]] = {}


def forget() -> None:
    """Forget the modules that were read, before those of another tree of files."""
    _READ.clear()


def _units(file: SourceFile, files: Tree) -> tuple[Unit, ...]:
    """The functions and methods of a module, in its order; none where it is not Python."""
    key = (file.path, file.sha256)
    if key not in _READ:
        _READ[key] = tuple(_read(file, files))
    return _READ[key]


def _read(file: SourceFile, files: Tree) -> Iterator[Unit]:
    try:
        tree = parse_silently(file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    module = Module(file, tree, files, WHOLE_JOB)
    stated = [*called_settings.claims(module), *called_settings.torch_claims(module), *dataset_devices.claims(module)]
    # What comes before a call, or is missing, may be in the script, and so may be what decides which ranks call.
    stated = [claim for claim in stated if not claim.quantity.endswith(called_settings.OF_FILE)]
    stated = [claim for claim in stated if not called_settings.is_finished_later(claim)]
    for node in tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                owner = node.name if isinstance(node, ast.ClassDef) else ""
                yield _unit(module, function, owner, stated)


def _unit(module: Module, function: Function, owner: str, stated: list[Claim]) -> Unit:
    calls = [call for call in module.outline.calls_in(function) if not module.condition(call)]
    end = function.end_lineno or function.lineno
    return Unit(
        function.name,
        owner,
        frozenset(last(module.called(call)) for call in calls if not is_left_before(module, call)),
        tuple(claim for claim in stated if function.lineno <= claim.span.line <= end),
    )


def _reached(units: tuple[Unit, ...], used: set[str], called: frozenset[str]) -> list[Unit]:
    """The functions and classes that a script uses, and what these call, in the order of the module."""
    names, methods = set(used), set(called)
    while True:
        reached = [
            unit
            for unit in units
            if (unit.owner in names and unit.name in _ALWAYS | methods if unit.owner else unit.name in names)
        ]
        further = frozenset[str]().union(*(unit.calls for unit in reached))
        if further <= names and further <= methods:
            return reached
        names |= further
        methods |= further
