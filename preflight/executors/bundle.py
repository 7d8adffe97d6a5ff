"""The node bundle: the modules that run on nodes as one document, and the probes extracted from plugins.

Probes are extracted so that a check and its probe can be in one file, although the check needs preflight and a node has
only Python. Line numbers are preserved, so that a traceback from a node leads to the author's file.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import marshal
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from preflight._util.sequences import grouped
from preflight.agent.bootstrap import filename
from preflight.agent.wire import Ship

if TYPE_CHECKING:
    from preflight._util.cache import Cache


#: Packages that are sent whole, each with its modules but without sub-packages' data files.
SHIPPED = ("preflight.agent", "preflight_checks.probes", "reference_trainer")
#: The package that only the smoke run needs: 40 % of the total.
TRAINER = "reference_trainer"
#: Packages whose modules import only the standard library and each other (a test ensures this): an agent imports them
#: before it forks, so that its children need not.
READY = ("preflight_checks.probes",)
#: Single modules of our own: facts pass through them before they leave a node.
EXTRA_MODULES = ("preflight._util.redaction", "preflight._util.secret_names", "preflight._util.secret_spans")
#: Single modules of installed distributions: the bindings to NVIDIA's management library are one file.
SINGLE_MODULES = ("pynvml",)
#: The first module that the loader runs.
BOOTSTRAP = "preflight.agent.bootstrap"
#: Probes are far smaller than a megabyte of sources: a larger bundle contains something by mistake.
MAX_BYTES = 8 * 1024 * 1024


class BundleError(Exception):
    """The bundle cannot be built: a shipped package is missing or far too large."""


@functools.cache
def build_bundle(*, trainer: bool = True, cache: Cache | None = None) -> bytes:
    """Return the compressed bundle of all shipped modules. Raises BundleError.

    Parents of shipped packages are empty on the node, because the real ones need modules of the head.
    """
    modules, packages = sources_of([name for name in SHIPPED if trainer or name != TRAINER])
    if SHIPPED[0] not in modules:
        raise BundleError(f"the package {SHIPPED[0]}, which nodes need, was not found")
    for name in EXTRA_MODULES:
        parent, _, last = name.rpartition(".")
        folder = _folder(parent)
        if folder is None:
            raise BundleError(f"the module {name}, which nodes need, was not found")
        modules[name] = (folder / f"{last}.py").read_text(encoding="utf-8")
        _add_parents(name, modules, packages)
    singles = {}
    for name in SINGLE_MODULES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            singles[name] = Path(spec.origin).read_text(encoding="utf-8")
    size = sum(len(source) for source in (*modules.values(), *singles.values()))
    if size > MAX_BYTES:
        raise BundleError(f"the sources for nodes are {size} bytes; the limit is {MAX_BYTES}")
    key = _key(modules, packages, singles) if cache is not None else ""
    bundle = cache.get(key) if cache is not None else None
    if bundle is None:
        bundle = pack(modules, packages, ready=READY, singles=singles)
        if cache is not None:
            cache.put(key, bundle)
    return bundle


def _key(modules: Mapping[str, str], packages: Collection[str], singles: Mapping[str, str]) -> str:
    """Return a cache key for all inputs of the bundle: each source, this module, and the Python that compiles them."""
    depends = [sys.version, zlib.ZLIB_RUNTIME_VERSION, READY, sorted(packages), modules, singles]
    identity = json.dumps([Path(__file__).read_text(encoding="utf-8"), *depends], sort_keys=True)
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def pack(
    modules: Mapping[str, str],
    packages: Collection[str],
    *,
    ready: Sequence[str] = (),
    singles: Mapping[str, str] | None = None,
) -> bytes:
    """Return a bundle in the form that the loader unpacks: a length, that many bytes of JSON, and an appendix of
    compressed parts.

    The JSON has `modules`, their names; `packages`, the names of those that contain others; `ready`, prefixes of
    modules that an agent may import before it forks; `packed`, the positions in the appendix of all sources (under an
    empty name), of each of the rarely needed `singles`, and of the bootstrap; and `compiled`, the positions of bytecode
    for nodes whose Python has the same `magic` number, because compiling the imports takes a node as long as starting
    Python.
    """
    appendix = bytearray()

    def add_part(data: bytes) -> list[int]:
        began = len(appendix)
        # This takes a quarter of the time of the best compression, for 1 % more bytes.
        appendix.extend(zlib.compress(data, 6))
        return [began, len(appendix)]

    separate = {**(singles or {}), BOOTSTRAP: modules[BOOTSTRAP]}
    document = {
        "modules": sorted(modules),
        "packages": sorted(packages),
        "ready": list(ready),
        "packed": {
            "": add_part(json.dumps(modules, sort_keys=True).encode()),
            **{name: add_part(source.encode()) for name, source in sorted(separate.items())},
        },
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "compiled": {name: add_part(marshal.dumps(code, 2)) for name, code in _compile_modules(modules, packages)},
    }
    head = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return len(head).to_bytes(4, "big") + head + bytes(appendix)


def pack_extra_modules(extra: Sequence[tuple[str, str]]) -> Ship:
    """Return a document that makes an agent import further modules. Raises BundleError above MAX_BYTES."""
    modules: dict[str, str] = {}
    packages: set[str] = set()
    for name, source in extra:
        modules[name] = source
        _add_parents(name, modules, packages)
    size = sum(map(len, modules.values()))
    if size > MAX_BYTES:
        raise BundleError(f"the plugin sources for nodes are {size} bytes; the limit is {MAX_BYTES}")
    return Ship(modules, sorted(packages))


def sources_of(shipped: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Return the sources of these packages' modules by name, and the packages; missing ones are skipped."""
    modules: dict[str, str] = {}
    packages: set[str] = set()
    for name in shipped:
        folder = _folder(name)
        if folder is None:
            continue
        parts = name.split(".")
        _add_parents(name, modules, packages)
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            is_package = inner[-1] == "__init__"
            module = ".".join((*parts, *(inner[:-1] if is_package else inner)))
            modules[module] = path.read_text(encoding="utf-8")
            if is_package:
                packages.add(module)
        modules.setdefault(name, "")
        packages.add(name)
    return modules, packages


def _compile_modules(modules: Mapping[str, str], packages: Collection[str]) -> Iterator[tuple[str, CodeType]]:
    """Return the code objects of the modules, under their names on nodes."""
    folders = {package: _folder(package) for package in packages}
    for name, source in sorted(modules.items()):
        named = filename(name, name in packages)
        known = _cached_code(name, source, folders.get(name.rpartition(".")[0]))
        with contextlib.suppress(SyntaxError, ValueError):  # A plugin's module; importing it will report the error.
            yield (
                name,
                _replace_filename(known, named)
                if known is not None
                else compile(source, named, "exec", dont_inherit=True),
            )


def _cached_code(name: str, source: str, folder: Path | None) -> CodeType | None:
    """Return the cached code of a module, because compiling takes longest; None if it is missing or stale."""
    if folder is None:
        return None
    path = folder / f"{name.rpartition('.')[2]}.py"
    loader = SourceFileLoader(name, str(path))
    try:
        code = loader.get_code(name)
        return code if path.read_text(encoding="utf-8") == source else None
    except (OSError, SyntaxError, ValueError, ImportError):
        return None


def _replace_filename(code: CodeType, filename: str) -> CodeType:
    """Return the code object, including nested ones, with another file name."""
    inner = tuple(
        _replace_filename(module, filename) if isinstance(module, CodeType) else module for module in code.co_consts
    )
    return code.replace(co_filename=filename, co_consts=inner)


def _add_parents(name: str, modules: dict[str, str], packages: set[str]) -> None:
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        modules.setdefault(parent, "")
        packages.add(parent)


def _folder(package: str) -> Path | None:
    """Return the folder of a package, found through its top package so that no parent is imported."""
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        folder = Path(location, *inner)
        if folder.is_dir() and any(folder.glob("*.py")):
            return folder
    return None


#: The module that authors import from. Nodes do not have it; a probe gets each name from the module that defines it.
_FACADE = "preflight.plugin"


class ExtractionError(Exception):
    """A probe needs something that is missing on nodes; the message names it with its location."""


def extract(probes: Iterable[Callable[..., object]]) -> dict[str, str]:
    """Return the sources, by module, that these probes need beyond those always sent. Raises ExtractionError."""
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
    """A module under extraction: the names that are needed from it, and the statements that are kept for them."""

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
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                postponed = postponed or statement.names[0].name == "annotations"
                self.kept.add(statement)
        by_name = grouped((name, statement) for statement in self.tree.body for name in _bound_names(statement))
        waiting = [wanted] if wanted else list(by_name)
        while waiting:
            name = waiting.pop()
            if name in self.needed_names:
                continue
            self.needed_names.add(name)
            for statement in by_name.get(name, ()):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    yield from self._import_needs(statement, name)
                elif statement not in self.kept:
                    waiting.extend(_used_names(statement, annotations=not postponed))
                    yield from self._inner_import_needs(statement)
                self.kept.add(statement)

    def _import_needs(self, statement: ast.Import | ast.ImportFrom, name: str) -> Iterator[_Need]:
        """Yield the dependencies of `name`, which this statement imports. Raises ExtractionError if unsendable."""
        for module, wanted in self._sources(statement, name):
            module = _defining_module(wanted) if module == _FACADE else module
            if module.partition(".")[0] == self.name.partition(".")[0]:
                yield (f"{module}.{wanted}", "") if _is_module(f"{module}.{wanted}") else (module, wanted)
            elif module.partition(".")[0] not in sys.stdlib_module_names and not _is_shipped(module):
                raise ExtractionError(
                    f"{self.file}:{statement.lineno}: a probe uses {module}, which nodes do not have; import it "
                    "inside the probe, which can handle the ImportError, or avoid it"
                )

    def _inner_import_needs(self, statement: ast.stmt) -> Iterator[_Need]:
        """Yield what a function imports from its own package at run time; the probe must handle other imports."""
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
        """Return the imports of the facade's names on one line, each from the module that defines it."""
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
        raise ExtractionError(f"the source of {name}, whose probes run on nodes, cannot be read: {error}") from None
    return _Module(name, file, text.splitlines(), ast.parse(text), hasattr(module, "__path__"))


def _is_shipped(module: str) -> bool:
    return module in (*SINGLE_MODULES, *EXTRA_MODULES) or any(
        module == package or module.startswith(f"{package}.") for package in SHIPPED
    )


def _defining_module(name: str) -> str:
    from preflight import plugin

    return str(getattr(getattr(plugin, name, None), "__module__", _FACADE))


def _is_module(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _absolute(statement: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + (1 if is_package else 0)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _bound_names(statement: ast.stmt) -> Iterator[str]:
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
