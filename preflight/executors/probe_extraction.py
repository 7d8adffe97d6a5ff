"""Extracts the part of a plugin's module that runs on nodes: its probes and what they use.

So a check and its probe can be in one file, although the check needs preflight and a node has only Python.
Line numbers are preserved, so that a traceback from a node leads to the author's file.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from preflight.executors.bundle import EXTRA_MODULES, SHIPPED, SINGLE_MODULES

#: What authors import from. Nodes do not have it; a probe gets each name from the module that defines it.
_FACADE = "preflight.plugin"


class ExtractionError(Exception):
    """A probe needs something that is missing on nodes; the message names it with its location."""


def extract(probes: Iterable[Callable[..., object]]) -> dict[str, str]:
    """Return the sources, by module, that nodes need to run these probes, without those that are always sent.

    Raises:
        ExtractionError: a probe, or its dependency, needs something at import time that is not part of Python, is not
        sent, and is not in its own package; or its source cannot be read.
    """
    waiting: list[_Need] = [
        (probe.__module__, probe.__qualname__.partition(".")[0])
        for probe in probes
        if not _is_shipped(probe.__module__)
    ]
    done: dict[str, _Module] = {}
    while waiting:
        name, wanted = waiting.pop()
        module = done.get(name) or done.setdefault(name, _read(name))
        waiting.extend(module.take(wanted))
    return {name: module.text() for name, module in sorted(done.items())}


#: A module, and the name that is needed from it; without a name all of it.
_Need = tuple[str, str]


@dataclass(slots=True)
class _Module:
    """A module being extracted: the names that are needed from it, and the statements that are kept for them."""

    name: str
    file: str
    lines: list[str]
    tree: ast.Module
    is_package: bool
    needed_names: set[str] = field(default_factory=set)
    kept: set[ast.stmt] = field(default_factory=set)

    def take(self, wanted: str) -> Iterator[_Need]:
        """Keep the statements that bind this name and its dependencies; return the names needed from other modules."""
        postponed = False
        by_name: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                postponed = postponed or statement.names[0].name == "annotations"
                self.kept.add(statement)
            for name in _bound_names(statement):
                by_name.setdefault(name, []).append(statement)
        waiting = [wanted] if wanted else list(by_name)
        while waiting:
            name = waiting.pop()
            if name in self.needed_names:
                continue
            self.needed_names.add(name)
            for statement in by_name.get(name, ()):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    yield from self._imported(statement, name)
                elif statement not in self.kept:
                    waiting.extend(_used_names(statement, annotations=not postponed))
                    yield from self._imported_inside(statement)
                self.kept.add(statement)

    def _imported(self, statement: ast.Import | ast.ImportFrom, name: str) -> Iterator[_Need]:
        """Return what must be sent for `name`, which this statement imports.

        Raises ExtractionError if that is impossible.
        """
        for module, wanted in self._sources(statement, name):
            module = _defining_module(wanted) if module == _FACADE else module
            if module.partition(".")[0] == self.name.partition(".")[0]:
                yield (f"{module}.{wanted}", "") if _is_module(f"{module}.{wanted}") else (module, wanted)
            elif module.partition(".")[0] not in sys.stdlib_module_names and not _is_shipped(module):
                raise ExtractionError(
                    f"{self.file}:{statement.lineno}: a probe uses {module}, which nodes do not have; import it inside "
                    "the probe, where it can handle the ImportError, or do without it"
                )

    def _imported_inside(self, statement: ast.stmt) -> Iterator[_Need]:
        """Return what a function imports from its own package when it runs. The probe itself must handle any other
        import.
        """
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for module, wanted in self._sources(node, ""):
                    if module.partition(".")[0] == self.name.partition(".")[0]:
                        yield (f"{module}.{wanted}", "") if _is_module(f"{module}.{wanted}") else (module, wanted)

    def _sources(self, statement: ast.Import | ast.ImportFrom, name: str) -> Iterator[_Need]:
        """Return the modules, and their names, that the statement imports as `name`, or under any name."""
        base = _absolute(statement, self.name, self.is_package) if isinstance(statement, ast.ImportFrom) else ""
        for alias in statement.names:
            bound = alias.asname or (alias.name if base else alias.name.partition(".")[0])
            if not name or bound == name:
                yield (base, alias.name) if base else (alias.name, "")

    def text(self) -> str:
        """Return the kept statements on their original lines."""
        numbers: set[int] = set()
        for statement in self.kept:
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(item.lineno for item in decorators)])
            numbers.update(range(first, (statement.end_lineno or first) + 1))
        kept = [line if number in numbers else "" for number, line in enumerate(self.lines, start=1)]
        for statement in self.kept:
            if isinstance(statement, ast.ImportFrom) and statement.module == _FACADE:
                first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
                kept[first:last] = [self._without_facade(statement), *[""] * (last - first - 1)]
        return "\n".join(kept).rstrip("\n") + "\n"

    def _without_facade(self, statement: ast.ImportFrom) -> str:
        """The imports of the names that probes use, each from the module that defines it, on one line."""
        used = [alias for alias in statement.names if (alias.asname or alias.name) in self.needed_names]
        return "; ".join(
            f"from {_defining_module(alias.name)} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
            for alias in used
        )


def _read(name: str) -> _Module:
    module = sys.modules.get(name)
    if module is None:
        import importlib

        module = importlib.import_module(name)
    try:
        file = inspect.getsourcefile(module) or ""
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise ExtractionError(
            f"the source of {name}, whose probes are to run on nodes, cannot be read: {error}"
        ) from None
    return _Module(name, file, text.splitlines(), ast.parse(text), hasattr(module, "__path__"))


def _is_shipped(module: str) -> bool:
    return module in (*SINGLE_MODULES, *EXTRA_MODULES) or any(
        module == package or module.startswith(f"{package}.") for package in SHIPPED
    )


def _defining_module(name: str) -> str:
    """The module that defines a name of the facade."""
    from preflight import plugin

    return str(getattr(getattr(plugin, name, None), "__module__", _FACADE))


def _is_module(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _absolute(statement: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the full name of the module in a `from` import."""
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + (1 if is_package else 0)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """Return the names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _used_names(statement: ast.stmt, *, annotations: bool) -> Iterator[str]:
    """Return the names that a statement needs when it runs; those of annotations only if they are evaluated."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name):
            yield node.id
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns") and not annotations:
                continue
            waiting.extend(
                item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST)
            )
