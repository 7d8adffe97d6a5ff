"""The arguments of well-known calls in modules that a script imports, where the script comes to them.

A module is read for what the script uses of it: the functions and classes that it imports by name, and those that these
use. What other functions of the module do concerns other scripts.
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from preflight.model.job import WHOLE_JOB, Claim
from preflight.sources.base import SourceFile
from preflight.sources.python import called_settings, dataset_devices, imports
from preflight.sources.python.module import Module

#: Characters. Larger modules are libraries, of which a script uses a small part.
_MAX_LENGTH = 100_000


class Definition(NamedTuple):
    """A function or class at the top level of a module.

    Args:
        uses: the names of other definitions that occur in it.
        claims: what the script's readers of calls and datasets state of it.
    """

    uses: frozenset[str]
    claims: tuple[Claim, ...]


def claims(module: Module) -> Iterator[Claim]:
    """The claims of the functions and classes that a script imports and calls."""
    for path, names in _used(module).items():
        file = module.files.read(path)
        if not isinstance(file, SourceFile) or len(file.text) > _MAX_LENGTH:
            continue
        found = _definitions(_Key(file, module))
        for name in _reached(found, names):
            yield from found[name].claims


def _used(module: Module) -> dict[str, set[str]]:
    """The names that a script calls in its own modules, by the path of the module."""
    called = {tuple(module.called(call).strip(".").split(".")) for call in module.calls}
    used: dict[str, set[str]] = {}
    for reference in imports.references(module, ""):
        stem = "/" + reference.target.removesuffix(".py").removesuffix("/__init__")
        for parts in called:
            # `package.module.Class`, or a method of it
            for length in range(1, len(parts)):
                if stem.endswith("/" + "/".join(parts[:length])):
                    used.setdefault(reference.target, set()).add(parts[length])
    return used


class _Key(NamedTuple):
    """A module to read, which equals another one of the same text."""

    file: SourceFile
    importer: Module

    def __hash__(self) -> int:
        return hash((self.file.path, self.file.sha256))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self.file.path, self.file.sha256) == (other.file.path, other.file.sha256)


@functools.lru_cache(maxsize=64)
def _definitions(key: _Key) -> dict[str, Definition]:
    """The definitions of a module, by name; empty where it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(key.file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    module = Module(key.file, tree, key.importer.files, WHOLE_JOB)
    stated = [*called_settings.claims(module), *called_settings.torch_claims(module), *dataset_devices.claims(module)]
    # What comes before a call, or is missing, may be in the script.
    stated = [claim for claim in stated if not claim.quantity.endswith(called_settings.ORDER)]
    return {
        node.name: Definition(
            frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name)),
            tuple(claim for claim in stated if node.lineno <= claim.span.line <= (node.end_lineno or node.lineno)),
        )
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }


def _reached(definitions: dict[str, Definition], names: Iterable[str]) -> list[str]:
    """These definitions and those that they use, in the order of the module."""
    reached: set[str] = set()
    waiting = [name for name in names if name in definitions]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += definitions[name].uses & set(definitions)
    return [name for name in definitions if name in reached]
