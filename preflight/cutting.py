"""What of a plugin's module runs on nodes: its probes, and of the rest only what they use.

A check and its probe may then stand in one file, although the check needs preflight and a node has nothing but Python.
Lines keep their numbers, so that a traceback from a node leads to the author's file.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from pathlib import Path

from preflight.bundle import OWN, SHIPPED, SINGLE
from preflight.lazy.dataclasses import dataclass


class CutError(Exception):
    """A probe needs something that no node has; the message names it with its place."""


def cut(probes: Iterable[Callable[..., object]]) -> dict[str, str]:
    """The sources, by module, that nodes need to run these probes; those that are shipped anyway are left out.

    Raises:
        CutError: a probe, or something it uses, needs when its module is imported what is neither Python's own, nor
            shipped, nor of its own package; or its source cannot be read.
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


#: A module, and the name that is wanted of it; without a name all that it holds.
_Need = tuple[str, str]


@dataclass(slots=True)
class _Module:
    """A module while it is cut: which names were asked of it, and which of its statements are kept for them."""

    name: str
    file: str
    lines: list[str]
    tree: ast.Module
    is_package: bool
    asked: set[str] = field(default_factory=set)
    kept: set[ast.stmt] = field(default_factory=set)

    def take(self, wanted: str) -> Iterator[_Need]:
        """Keep what binds this name and what that uses in turn; what is needed of other modules for it."""
        postponed = False
        by_name: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                postponed = postponed or statement.names[0].name == "annotations"
                self.kept.add(statement)
            for name in _binds(statement):
                by_name.setdefault(name, []).append(statement)
        waiting = [wanted] if wanted else list(by_name)
        while waiting:
            name = waiting.pop()
            if name in self.asked:
                continue
            self.asked.add(name)
            for statement in by_name.get(name, ()):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    yield from self._imported(statement, name)
                elif statement not in self.kept:
                    waiting.extend(_uses(statement, annotations=not postponed))
                    yield from self._imported_inside(statement)
                self.kept.add(statement)

    def _imported(self, statement: ast.Import | ast.ImportFrom, name: str) -> Iterator[_Need]:
        """What has to be shipped for `name`, which this statement imports. Raises CutError where nothing can be."""
        for module, wanted in self._sources(statement, name):
            if module.partition(".")[0] == self.name.partition(".")[0]:
                yield (f"{module}.{wanted}", "") if _is_module(f"{module}.{wanted}") else (module, wanted)
            elif module.partition(".")[0] not in sys.stdlib_module_names and not _is_shipped(module):
                raise CutError(
                    f"{self.file}:{statement.lineno}: a probe uses {module}, which nodes do not have; import it inside "
                    "the probe, where its absence can be told, or do without it"
                )

    def _imported_inside(self, statement: ast.stmt) -> Iterator[_Need]:
        """What a function imports of its own package when it runs. Of anything else the probe has to tell itself."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for module, wanted in self._sources(node, ""):
                    if module.partition(".")[0] == self.name.partition(".")[0]:
                        yield (f"{module}.{wanted}", "") if _is_module(f"{module}.{wanted}") else (module, wanted)

    def _sources(self, statement: ast.Import | ast.ImportFrom, name: str) -> Iterator[_Need]:
        """Modules, and what of them, that the statement imports as `name`, or as anything."""
        base = _absolute(statement, self.name, self.is_package) if isinstance(statement, ast.ImportFrom) else ""
        for alias in statement.names:
            bound = alias.asname or (alias.name if base else alias.name.partition(".")[0])
            if not name or bound == name:
                yield (base, alias.name) if base else (alias.name, "")

    def text(self) -> str:
        """The kept statements on the lines they stood on."""
        numbers: set[int] = set()
        for statement in self.kept:
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(item.lineno for item in decorators)])
            numbers.update(range(first, (statement.end_lineno or first) + 1))
        kept = [line if number in numbers else "" for number, line in enumerate(self.lines, start=1)]
        return "\n".join(kept).rstrip("\n") + "\n"


def _read(name: str) -> _Module:
    module = sys.modules.get(name)
    if module is None:
        import importlib

        module = importlib.import_module(name)
    try:
        file = inspect.getsourcefile(module) or ""
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise CutError(f"the source of {name}, whose probes are to run on nodes, cannot be read: {error}") from None
    return _Module(name, file, text.splitlines(), ast.parse(text), hasattr(module, "__path__"))


def _is_shipped(module: str) -> bool:
    return module in (*SINGLE, *OWN) or any(module == one or module.startswith(f"{one}.") for one in SHIPPED)


def _is_module(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _absolute(statement: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The full name of the module a `from` names."""
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + (1 if is_package else 0)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _binds(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a module gives a value."""
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


def _uses(statement: ast.stmt, *, annotations: bool) -> Iterator[str]:
    """The names that a statement needs when it runs; those of annotations only where they are evaluated."""
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
