"""Files that are mounted in a pod's containers: entries of ConfigMaps, at the path where a container sees them.

A script in a ConfigMap is a script of the job: `bash /scripts/train.sh` runs it. Names and defaults are those of the
core API (v1 ConfigMapVolumeSource, VolumeMount; Kubernetes 1.33).
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from preflight.model.job import Note
from preflight.sources.base import SourceFile, Tree, WrittenFile
from preflight.sources.formats.structured import Kind, Node
from preflight.sources.formats.yaml_code import code_of
from preflight.sources.shell.shell_document import Document, FileText, Lit, Place, Text

_MAX_MOUNTED = 200


@dataclass(frozen=True, slots=True)
class Mounted:
    """One file in a container: `name` is its path in the tree, distinct from those of real files."""

    path: str
    name: str
    node: Node


class PodTree:
    """The tree as a container sees it: mounted files at their absolute paths, all others as in the underlying tree."""

    def __init__(self, tree: Tree, text: FileText, mounted: Mapping[str, Mounted]) -> None:
        self._tree = tree
        self._mounted = mounted
        self._by_name = {item.name: item for item in mounted.values()}
        self._text = text
        #: The parsed texts, each character with its location in the manifest.
        self.documents = {name: self._document(item) for name, item in self._by_name.items() if not _is_python(name)}

    def _code(self, item: Mounted) -> Text:
        return code_of(self._text, item.node)

    def _document(self, item: Mounted) -> Document:
        return Document(self._code(item), Place(self._text, item.node.start, item.node.end))

    def _plain(self, item: Mounted) -> str:
        return "".join(piece.text if isinstance(piece, Lit) else "X" for piece in self._code(item))

    def read(self, path: str) -> SourceFile | Note:
        """A mounted file by its name, otherwise a file of the underlying tree."""
        item = self._by_name.get(path)
        below = self._tree.read(path)
        if item is None or isinstance(below, SourceFile):
            return below
        text = self._plain(item)
        return SourceFile(path, text, hashlib.sha256(text.encode()).hexdigest(), len(text))

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """The name of the file that is mounted at an absolute path; other paths as in the underlying tree."""
        item = self._mounted.get(posixpath.normpath(path)) if path.startswith("/") else None
        if item is None and relative_to in self._by_name and not path.startswith("/"):
            beside = posixpath.join(posixpath.dirname(self._by_name[relative_to].path), path)
            item = self._mounted.get(posixpath.normpath(beside))
        return item.name if item is not None else self._tree.resolve(path, relative_to=relative_to)

    def names(self, folder: str) -> tuple[str, ...]:
        """As in the underlying tree."""
        return self._tree.names(folder)

    def is_script(self, name: str) -> bool:
        """Whether this is the name of a mounted file that is read together with the command that runs it."""
        return name in self.documents

    def written(self) -> Iterator[WrittenFile]:
        """The mounted Python programs, so that references to them can be followed."""
        for name, item in self._by_name.items():
            if _is_python(name) and not isinstance(self._tree.read(name), SourceFile):
                code = self._code(item)
                first = next((piece for piece in code if isinstance(piece, Lit)), None)
                if first is not None:
                    yield WrittenFile(name, self._plain(item), first.place.span)


def _is_python(name: str) -> bool:
    return name.endswith(".py")


#: The path in the tree of the file that a value of the manifest was made of, if it was.
SourceOf: TypeAlias = Callable[[Node], "str | None"]


def mounted_files(
    pod: Node, container: Node, config_maps: Mapping[str, Node], folder: str, made_of: SourceOf = lambda node: None
) -> dict[str, Mounted]:
    """The files that are mounted in a container from ConfigMaps, by absolute path; `folder` is that of the manifest."""
    volumes: dict[str, dict[str, Mounted]] = {}
    listed = pod.at("volumes")
    for volume in listed.items if listed is not None else ():
        found = dict(_entries(volume.at("configMap"), config_maps, folder, made_of))
        sources = volume.at("projected", "sources")
        for source in sources.items if sources is not None else ():
            found.update(_entries(source.at("configMap"), config_maps, folder, made_of))
        if found:
            volumes[volume.text("name")] = found
    result: dict[str, Mounted] = {}
    mounts = container.at("volumeMounts")
    for mount in mounts.items if mounts is not None else ():
        entries = volumes.get(mount.text("name"))
        where, below = mount.text("mountPath"), mount.text("subPath")
        if not entries or not where.startswith("/") or len(result) >= _MAX_MOUNTED:
            continue
        if below:
            item = entries.get(posixpath.normpath(below))
            if item is not None:
                path = posixpath.normpath(where)
                result[path] = Mounted(path, item.name, item.node)
            continue
        for relative, item in entries.items():
            path = posixpath.normpath(posixpath.join(where, relative))
            result[path] = Mounted(path, item.name, item.node)
    return result


def _entries(
    source: Node | None, config_maps: Mapping[str, Node], folder: str, made_of: SourceOf
) -> Iterator[tuple[str, Mounted]]:
    """The entries of one ConfigMap by their path in the volume."""
    name = source.text("name") if source is not None else ""
    data = config_maps.get(name)
    if source is None or data is None:
        return
    items = source.at("items")
    chosen = {item.text("key"): item.text("path") for item in items.items} if items is not None else None
    for member in data.in_force:
        if member.node.kind is not Kind.SCALAR or not isinstance(member.node.value, str):
            continue
        relative = member.key if chosen is None else chosen.get(member.key, "")
        relative = posixpath.normpath(relative) if relative else ""
        if relative and not relative.startswith(("..", "/")):
            kept = made_of(member.node) or posixpath.join(folder, name, relative)
            yield relative, Mounted(relative, kept, member.node)
