"""The node bundle: the modules that run on nodes, as one compressed document that is imported from memory there.

Nothing is installed on a node, and nothing of ours is written to its disk. The bytes are the same for the same
sources, so they can be compared and cached.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import zlib
from pathlib import Path

#: Packages that are shipped whole, each with its modules but without sub-packages' data files.
SHIPPED = ("preflight.node", "preflight_checks.probes", "reference_trainer")
#: Single modules of installed distributions: the bindings to NVIDIA's management library are one file.
SINGLE = ("pynvml",)
#: Sources of a megabyte are no probes; something is in the wrong place.
LARGEST_BYTES = 8 * 1024 * 1024


class BundleError(Exception):
    """The bundle cannot be built: a shipped package is missing or far too large."""


@functools.cache
def node_bundle(extra: tuple[str, ...] = ()) -> bytes:
    """The bundle of everything shipped, and of `extra` packages (a plugin's probes), compressed.

    A zlib stream of JSON: `modules` maps names to sources, `packages` lists those that hold others. Parents of
    shipped packages are empty on the node, because the real ones need what only the head has.

    Raises:
        BundleError: a package in `extra`, or our own agent, is not there, or the sources exceed LARGEST_BYTES.
    """
    modules: dict[str, str] = {}
    packages: set[str] = set()
    for name in (*SHIPPED, *extra):
        folder = _folder(name)
        if folder is None:
            if name in extra or name == SHIPPED[0]:
                raise BundleError(f"the package {name} to be shipped to nodes was not found")
            continue
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            modules.setdefault(parent, "")
            packages.add(parent)
        for path in sorted(folder.rglob("*.py")):
            inner = path.relative_to(folder).with_suffix("").parts
            is_package = inner[-1] == "__init__"
            module = ".".join((*parts, *(inner[:-1] if is_package else inner)))
            modules[module] = path.read_text(encoding="utf-8")
            if is_package:
                packages.add(module)
        modules.setdefault(name, "")
        packages.add(name)
    for name in SINGLE:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            modules[name] = Path(spec.origin).read_text(encoding="utf-8")
    size = sum(len(source) for source in modules.values())
    if size > LARGEST_BYTES:
        raise BundleError(f"the sources for nodes are {size} bytes; at most {LARGEST_BYTES} are shipped")
    document = {"modules": modules, "packages": sorted(packages)}
    return zlib.compress(json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), 9)


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
