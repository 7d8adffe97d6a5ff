"""The arguments of well-known calls in modules that a script imports, where the script certainly comes to them.

A module is read for what the script uses of it: the functions that it calls, the methods of the classes of which it
makes objects, and what these call in turn. Calls under a condition, or after a return, are not followed: which of two
functions runs is often decided by how the job was started. What other functions of the module do concerns other
scripts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from preflight.model.job import WHOLE_JOB, Claim, Strength
from preflight.sources.base import SourceFile
from preflight.sources.python import called_settings, data_loaders, imports, paddle_strategy, written_files
from preflight.sources.python.environment import always_reached, is_left_before
from preflight.sources.python.module import SPAWNS, Module, argument, last, parse_silently, value_of
from preflight.sources.python.outline import Function

#: Characters. Larger modules are libraries, of which a script uses a small part.
_MAX_LENGTH = 100_000
#: Methods that run wherever an object is made or used.
_ALWAYS = frozenset(("__init__", "__post_init__", "__enter__", "__call__", "__getitem__", "forward", "training_step"))


#: A script that looks at its command line itself.
_PARSES = re.compile(r"\bargparse\b|\bargv\b|\bclick\b|\babsl\b|\bparse_known_args\b|\bparser\b|\badd_argument\b")
_CHANGES_LINE = re.compile(r"\bsys\.argv\b(?!\[0\])")
#: What a script gives a function so that each rank has a path of its own.
_OF_RANK = re.compile(r"rank|worker|hostname|uuid|getpid|process_index", re.IGNORECASE)
#: What reads the calls of a module.
_READERS = (
    called_settings.claims,
    called_settings.torch_claims,
    data_loaders.datasets_on_gpu,
    written_files.folders_of_module,
    paddle_strategy.claims,
)
#: Modules that import modules are followed to this depth.
_MAX_DEPTH = 3


class Unit(NamedTuple):
    """A function or method of a module.

    Args:
        name: of the function, without its class.
        owner: the name of its class; empty for a function.
        calls: the dotted names of what it certainly calls.
        claims: what the script's readers of calls and datasets state of it.
    """

    name: str
    owner: str
    calls: frozenset[str]
    claims: tuple[Claim, ...]


class _Part(NamedTuple):
    """A module as it was read.

    Args:
        units: its functions and methods, in its order.
        imports: the dotted names that it imports, by the names that they get in it.
        stars: the modules of which it imports everything.
        targets: the files of the user's own that it imports.
    """

    units: tuple[Unit, ...] = ()
    imports: Mapping[str, str] = {}
    stars: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def names(self, calls: Iterable[str]) -> set[str]:
        """Calls by the dotted names of what is called, as far as other modules define it."""
        own = {unit.owner or unit.name for unit in self.units}
        found = {self.imports.get(call, call) for call in calls}
        plain = {call for call in found if "." not in call} - own
        return {call for call in found if "." in call.strip(".")} | {
            f"{star}.{call}" for star in self.stars for call in plain
        }


def claims(module: Module) -> Iterator[Claim]:
    """The claims of the functions and methods of imported modules to which a script certainly comes.

    They are weaker than those of the script itself.
    """
    sure = [call for call in module.calls if always_reached(module, call) and not is_left_before(module, call)]
    script = _part_of(module, ())
    names = {module.called(call) for call in sure if module.is_imported(_first(call))}
    plain = {_first(call) for call in sure if isinstance(call.func, ast.Name)}
    names |= {name for name in plain if not module.outline.functions(name)}
    # A spawn calls the function that it is given.
    given = [argument(call, "fn", 0) or argument(call, "func", 0) for call in sure if module.called(call) in SPAWNS]
    names.update(module.name(value_of(each)) for each in given if each is not None)
    methods = {last(module.called(call)) for call in sure}
    for unit in _followed(script, script.names(names), methods, module, set(), 1):
        for claim in unit.claims:
            weaker = replace(claim, strength=Strength.CONFIG)
            if claim.quantity != "folder_made" or _makes_one_folder(module, unit):
                yield weaker


def _makes_one_folder(module: Module, unit: Unit) -> bool:
    """Whether a function of a module makes the same folder on all ranks of a script, which gives it nothing of its own.

    An object may have got a path of its rank earlier.
    """
    calls = module.named(unit.name)
    given = [*(item for call in calls for item in call.args), *(item for call in calls for item in call.keywords)]
    of_rank = any(_OF_RANK.search(module.text(item)) for item in given)
    return written_files.is_for_ranks(module) and not unit.owner and not of_rank


def _followed(
    part: _Part, names: set[str], methods: set[str], script: Module, seen: set[tuple[str, frozenset[str]]], depth: int
) -> Iterator[Unit]:
    """The units of the modules that a part imports and certainly uses, and those of the modules that these import."""
    for target in part.targets:
        used = frozenset(_used(target, names))
        file = script.files.read(target)
        if not used or (target, used) in seen or not isinstance(file, SourceFile) or len(file.text) > _MAX_LENGTH:
            continue
        seen.add((target, used))
        inner = _read(file, script)
        reached = _reached(inner.units, used, methods)
        yield from reached
        calls = {call for unit in reached for call in unit.calls}
        if depth < _MAX_DEPTH:
            further = inner.names(calls | used)
            yield from _followed(inner, further, methods | set(map(last, calls)), script, seen, depth + 1)


def _used(target: str, names: Iterable[str]) -> Iterator[str]:
    """What dotted names stand for in a file: `package.module.Class`, or a method of it."""
    stem = "/" + target.removesuffix(".py").removesuffix("/__init__")
    for parts in (name.strip(".").split(".") for name in names):
        for length in range(1, len(parts)):
            if stem.endswith("/" + "/".join(parts[:length])):
                yield parts[length]


def _first(call: ast.Call) -> str:
    """The first part of the name that a call is written with; empty for a call of something else."""
    at: ast.expr = call.func
    while isinstance(at, ast.Attribute):
        at = at.value
    return at.id if isinstance(at, ast.Name) else ""


def _read(file: SourceFile, script: Module) -> _Part:
    """A module with its functions and methods; nothing where it is not Python."""
    key = (file.path, file.sha256)
    part: _Part | None = script.imported.get(key)
    if part is None:
        try:
            tree = parse_silently(file.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            part = _Part()
        else:
            module = Module(file, tree, script.files, WHOLE_JOB, script.imported)
            part = _part_of(module, tuple(_units(module)))
        script.imported[key] = part
    return part


def _part_of(module: Module, units: tuple[Unit, ...]) -> _Part:
    stars = [node for node in module.nodes(ast.ImportFrom) if any(alias.name == "*" for alias in node.names)]
    return _Part(
        units,
        module.imports,
        tuple(node.module for node in stars if node.module),
        tuple(reference.target for reference in imports.references(module, "")),
    )


def _units(module: Module) -> Iterator[Unit]:
    stated = [claim for reader in _READERS for claim in reader(module)]
    # What comes before a call, or is missing, may be in the script, and so may be what decides which ranks call.
    stated = [claim for claim in stated if not claim.quantity.endswith(called_settings.OF_FILE)]
    stated = [claim for claim in stated if not called_settings.is_finished_later(claim)]
    for node in module.tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_plain(module, function):
                owner = node.name if isinstance(node, ast.ClassDef) else ""
                yield _unit(module, function, owner, stated)


#: Decorators under which a function is run as it is written.
_PLAIN = frozenset(("staticmethod", "classmethod", "no_grad", "record", "wraps", "inference_mode"))


def _is_plain(module: Module, function: Function) -> bool:
    """Whether nothing is known to decide on which ranks a function is run: `@master_only`."""
    made = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return all(last(module.name(each)) in _PLAIN for each in made)


def _unit(module: Module, function: Function, owner: str, stated: list[Claim]) -> Unit:
    calls = [call for call in module.outline.calls_in(function) if not module.condition(call)]
    end = function.end_lineno or function.lineno
    return Unit(
        function.name,
        owner,
        frozenset(module.called(call) for call in calls if not is_left_before(module, call)),
        tuple(claim for claim in stated if function.lineno <= claim.span.line <= end),
    )


def _reached(units: tuple[Unit, ...], used: Iterable[str], called: Iterable[str]) -> list[Unit]:
    """The functions and classes that a script uses, and what these call, in the order of the module."""
    names, methods = set(used), set(called)
    while True:
        reached = [
            unit
            for unit in units
            if (unit.owner in names and unit.name in _ALWAYS | methods if unit.owner else unit.name in names)
        ]
        further = {last(call) for unit in reached for call in unit.calls}
        if further <= names and further <= methods:
            return reached
        names |= further
        methods |= further
