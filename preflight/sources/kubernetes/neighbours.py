"""Finds objects that a manifest names and that are in other files of the tree, such as a ConfigMap, a runtime or a
queue.

They are searched near the file first: in its folder, in the folders below, then around each folder above it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import weakref
from collections.abc import Collection, Iterator
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.sources.base import SourceFile, Tree

#: Kind and name of an object.
Named: TypeAlias = tuple[str, str]

#: Files and folders that are searched for one manifest.
_MAX_FILES = 200
_MAX_FOLDERS = 120
#: Levels below each folder on the way up.
_MAX_DEPTH = 3
_DOCUMENT = re.compile(r"^---[^\n]*$", re.MULTILINE)
_KIND = re.compile(r"^kind:[ \t]*[\"']?(\w+)", re.MULTILINE)
_NAME = re.compile(
    r"^metadata:[ \t]*(?:#[^\n]*)?\n(?:[ \t]+[^\n]*\n|[ \t]*#[^\n]*\n|\n)*?[ \t]{1,8}name:[ \t]*[\"']?([\w.-]+)"
    r"|^metadata:[ \t]*\{[^}\n]*\bname:[ \t]*[\"']?([\w.-]+)",
    re.MULTILINE,
)
_NAMESPACE = re.compile(
    r"^metadata:[ \t]*(?:#[^\n]*)?\n(?:[ \t]+[^\n]*\n|[ \t]*#[^\n]*\n|\n)*?[ \t]{1,8}namespace:[ \t]*[\"']?([\w.-]+)"
    r"|^metadata:[ \t]*\{[^}\n]*\bnamespace:[ \t]*[\"']?([\w.-]+)",
    re.MULTILINE,
)
_SKIPPED = frozenset(("node_modules/", "vendor/", "third_party/", "venv/", "site-packages/", "__pycache__/", "crds/"))

#: The objects that each file of a tree defines, cached.
_DEFINITIONS: weakref.WeakKeyDictionary[Tree, dict[str, frozenset[Named]]] = weakref.WeakKeyDictionary()


def find_definitions(tree: Tree, path: str, names: Collection[Named]) -> list[SourceFile]:
    """The files near `path` that define the wanted objects; the nearest if there are several, the first of equally near
    ones.
    """
    missing = set(names)
    found: list[SourceFile] = []
    known: dict[str, frozenset[Named]] = {}
    with contextlib.suppress(TypeError):
        known = _DEFINITIONS.setdefault(tree, known)
    for number, candidate in enumerate(_around(tree, posixpath.dirname(path))):
        if not missing or number >= _MAX_FILES:
            break
        if candidate == path:
            continue
        spend(4)
        if candidate not in known:
            file = tree.read(candidate)
            known[candidate] = frozenset(_objects(file)) if isinstance(file, SourceFile) else frozenset()
        if known[candidate] & missing:
            missing -= known[candidate]
            file = tree.read(candidate)
            if isinstance(file, SourceFile):
                found.append(file)
    return found


def find_beside(tree: Tree, path: str, kinds: Collection[str], namespace: str) -> list[SourceFile]:
    """The other files in the folder of `path` that define an object of these kinds in a namespace.

    Only that folder is searched: objects of this namespace elsewhere may belong to another cluster.
    """
    folder, found = posixpath.dirname(path), []
    names = [name for name in tree.names(folder) if name.endswith((".yaml", ".yml"))]
    for name in names[:_MAX_FILES]:
        candidate = posixpath.join(folder, name)
        spend(4)
        file = tree.read(candidate) if candidate != path else None
        if isinstance(file, SourceFile) and any(
            kind in kinds and where == namespace for kind, where in _placed_objects(file)
        ):
            found.append(file)
    return found


def _placed_objects(file: SourceFile) -> Iterator[tuple[str, str]]:
    """The kind and namespace of each object of a file; an empty namespace where it names none."""
    if "apiVersion" not in file.text or "{{" in file.text:
        return
    spend(len(file.text) // 256)
    for document in _DOCUMENT.split(file.text)[:100]:
        kind, namespace = _KIND.search(document), _NAMESPACE.search(document)
        if kind is not None:
            yield kind[1], (namespace[1] or namespace[2]) if namespace is not None else ""


def _objects(file: SourceFile) -> Iterator[Named]:
    if "apiVersion" not in file.text or "kind" not in file.text:
        return
    spend(len(file.text) // 256)
    for document in _DOCUMENT.split(file.text)[:100]:
        kind, name = _KIND.search(document), _NAME.search(document)
        if kind is not None and name is not None:
            yield kind[1], name[1] or name[2]


def _around(tree: Tree, folder: str) -> Iterator[str]:
    """The YAML files near a folder, the nearest first."""
    seen: set[str] = set()
    here: str | None = folder
    while here is not None and len(seen) < _MAX_FOLDERS:
        waiting = [(here, 0)]
        while waiting and len(seen) < _MAX_FOLDERS:
            at, depth = waiting.pop(0)
            if at in seen:
                continue
            seen.add(at)
            for name in tree.names(at):
                path = posixpath.join(at, name)
                if not name.endswith("/"):
                    if name.endswith((".yaml", ".yml")):
                        yield path
                elif depth < _MAX_DEPTH and name not in _SKIPPED:
                    waiting.append((path.rstrip("/"), depth + 1))
        here = posixpath.dirname(here) if here else None
