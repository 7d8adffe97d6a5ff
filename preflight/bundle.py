"""The node bundle: the modules that run on nodes, as one compressed document that is imported from memory there.

Nothing is installed on a node, and nothing of ours is written to its disk. The bytes are the same for the same
sources, so they can be compared and cached.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import marshal
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from preflight.node.bootstrap import filename
from preflight.node.wire import Ship

if TYPE_CHECKING:
    from preflight.cache import Cache

#: Packages that are shipped whole, each with its modules but without sub-packages' data files.
SHIPPED = ("preflight.node", "preflight_checks.probes", "reference_trainer")
#: Of those, the one that only the smoke run needs: four tenths of all.
TRAINER = "reference_trainer"
#: Of those, packages whose modules import nothing but the standard library and each other (a test holds them to it): an
#: agent imports them itself before it forks, so that not every child has to.
READY = ("preflight_checks.probes",)
#: Single modules of our own: what is seen on a node passes it before it leaves.
OWN = ("preflight.redact", "preflight.lazy.patterns")
#: Single modules of installed distributions: the bindings to NVIDIA's management library are one file.
SINGLE = ("pynvml",)
#: What the loader runs first.
BOOTSTRAP = "preflight.node.bootstrap"
#: Sources of a megabyte are no probes; something is in the wrong place.
LARGEST_BYTES = 8 * 1024 * 1024


class BundleError(Exception):
    """The bundle cannot be built: a shipped package is missing or far too large."""


@functools.cache
def node_bundle(*, trainer: bool = True, cache: Cache | None = None) -> bytes:
    """The bundle of everything of ours that is shipped, compressed.

    Parents of shipped packages are empty on the node, because the real ones need what only the head has.

    Args:
        trainer: whether the reference trainer comes along.
        cache: where the bundle of the same sources is kept. To make one takes a tenth of a second and more.

    Raises:
        BundleError: our own agent is not there, or the sources exceed LARGEST_BYTES.
    """
    modules, packages = sources_of([name for name in SHIPPED if trainer or name != TRAINER])
    if SHIPPED[0] not in modules:
        raise BundleError(f"the package {SHIPPED[0]} to be shipped to nodes was not found")
    for name in OWN:
        parent, _, last = name.rpartition(".")
        folder = _folder(parent)
        if folder is None:
            raise BundleError(f"the module {name} to be shipped to nodes was not found")
        modules[name] = (folder / f"{last}.py").read_text(encoding="utf-8")
        _add_parents(name, modules, packages)
    singles = {}
    for name in SINGLE:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            singles[name] = Path(spec.origin).read_text(encoding="utf-8")
    size = sum(len(source) for source in (*modules.values(), *singles.values()))
    if size > LARGEST_BYTES:
        raise BundleError(f"the sources for nodes are {size} bytes; at most {LARGEST_BYTES} are shipped")
    key = _key(modules, packages, singles) if cache is not None else ""
    bundle = cache.get(key) if cache is not None else None
    if bundle is None:
        bundle = packed(modules, packages, ready=READY, singles=singles)
        if cache is not None:
            cache.put(key, bundle)
    return bundle


def _key(modules: Mapping[str, str], packages: Collection[str], singles: Mapping[str, str]) -> str:
    """What the bytes of a bundle depend on: every source, this module, and the Python that compiles them."""
    depends = [sys.version, zlib.ZLIB_RUNTIME_VERSION, READY, sorted(packages), modules, singles]
    said = json.dumps([Path(__file__).read_text(encoding="utf-8"), *depends], sort_keys=True)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def packed(
    modules: Mapping[str, str],
    packages: Collection[str],
    *,
    ready: Sequence[str] = (),
    singles: Mapping[str, str] | None = None,
) -> bytes:
    """A bundle as the loader takes it apart: a length, so many bytes of JSON, and an appendix of compressed parts.

    `modules` are names, of which `packages` hold others, and those below `ready` may be imported by an agent before it
    forks. `packed` says from where to where in the appendix the sources lie: together under no name, and apart those of
    `singles`, which are rarely wanted, and of the bootstrap. To compile what it imports costs a node as much as to
    start, so there is `compiled` code for those whose Python has the `magic` number of this one.
    """
    appendix = bytearray()

    def kept(data: bytes) -> list[int]:
        began = len(appendix)
        # A quarter of the time of the best compression, for a hundredth more bytes.
        appendix.extend(zlib.compress(data, 6))
        return [began, len(appendix)]

    alone = {**(singles or {}), BOOTSTRAP: modules[BOOTSTRAP]}
    document = {
        "modules": sorted(modules),
        "packages": sorted(packages),
        "ready": list(ready),
        "packed": {
            "": kept(json.dumps(modules, sort_keys=True).encode()),
            **{name: kept(source.encode()) for name, source in sorted(alone.items())},
        },
        "magic": importlib.util.MAGIC_NUMBER.hex(),
        "compiled": {name: kept(marshal.dumps(code, 2)) for name, code in _compiled(modules, packages)},
    }
    head = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return len(head).to_bytes(4, "big") + head + bytes(appendix)


def further(extra: Sequence[tuple[str, str]]) -> Ship:
    """What has an agent import these modules too, by name with their sources: the probes of a plugin.

    Raises:
        BundleError: they exceed LARGEST_BYTES.
    """
    modules: dict[str, str] = {}
    packages: set[str] = set()
    for name, source in extra:
        modules[name] = source
        _add_parents(name, modules, packages)
    size = sum(map(len, modules.values()))
    if size > LARGEST_BYTES:
        raise BundleError(f"the sources of plugins for nodes are {size} bytes; at most {LARGEST_BYTES} are shipped")
    return Ship(modules, sorted(packages))


def sources_of(shipped: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """The source of every module of these packages by its name, and which of them are packages.

    Parents of a package are empty. A package that is not installed is left out.
    """
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


def _compiled(modules: Mapping[str, str], packages: Collection[str]) -> Iterator[tuple[str, CodeType]]:
    """What this Python makes of the modules, under the names that they have on nodes."""
    folders = {package: _folder(package) for package in packages}
    for name, source in sorted(modules.items()):
        named = filename(name, name in packages)
        known = _known_code(name, source, folders.get(name.rpartition(".")[0]))
        with contextlib.suppress(SyntaxError, ValueError):  # A plugin's; whoever imports it will say so.
            yield (
                name,
                _renamed(known, named) if known is not None else compile(source, named, "exec", dont_inherit=True),
            )


def _known_code(name: str, source: str, folder: Path | None) -> CodeType | None:
    """The code of a module in `folder`, which Python mostly keeps beside it: to compile all takes longer than the rest.

    None where it is not found, or is that of another text.
    """
    if folder is None:
        return None
    path = folder / f"{name.rpartition('.')[2]}.py"
    loader = SourceFileLoader(name, str(path))
    try:
        code = loader.get_code(name)
        return code if path.read_text(encoding="utf-8") == source else None
    except (OSError, SyntaxError, ValueError, ImportError):
        return None


def _renamed(code: CodeType, filename: str) -> CodeType:
    """The same code, and all that is in it, from a file of another name."""
    inner = tuple(_renamed(one, filename) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=filename, co_consts=inner)


def _add_parents(name: str, modules: dict[str, str], packages: set[str]) -> None:
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        modules.setdefault(parent, "")
        packages.add(parent)


def _folder(package: str) -> Path | None:
    """Where a package lies. Found through its top one, so that no parent is imported for it."""
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    for location in spec.submodule_search_locations:
        folder = Path(location, *inner)
        if folder.is_dir() and any(folder.glob("*.py")):
            return folder
    return None
