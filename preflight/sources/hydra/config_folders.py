"""The folders in which Hydra looks for configurations, as far as they are in the tree."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from preflight.model.job import Note, NoteDetail, NoteKind
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats import lenient_yaml
from preflight.sources.formats.structured import Document, Kind, NodeClaims
from preflight.sources.hydra.config_tree import Section, Setting, from_file

#: The header of a configuration: `# @package _global_`, before anything else.
_HEADER = re.compile(r"#\s*@package\s+(\S+)\s*$")
_SUFFIX = ".yaml"
#: Configurations of one run that are kept.
_MAX_FILES = 400


@dataclass(slots=True)
class LoadedConfig:
    """One configuration file.

    Args:
        path: the file, relative to the root.
        header: the package that its first line names; None without one.
        file, document, node_claims: the content and the claims to be stated about it.
        defaults: its defaults list.
    """

    path: str
    header: str | None
    file: SourceFile
    document: Document
    node_claims: NodeClaims
    defaults: Setting | None

    def section(self) -> Section:
        """Its content without the defaults list; a new one each time."""
        root = self.document.root
        assert root is not None
        section = from_file(self.file, root, self.node_claims)
        section.members.pop("defaults", None)
        return section


@dataclass(slots=True)
class ConfigFolders:
    """Finds configurations by name in several folders; the first that has one wins.

    Args:
        tree: where they are looked up.
        folders: relative to the root, in the order of the search path.
        incomplete: why further configurations may exist (an installed package, structured configurations); empty if
        none can.
    """

    tree: Tree
    folders: tuple[str, ...]
    incomplete: str = ""
    #: Files that were read, in order.
    files: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    _loaded: dict[str, LoadedConfig | None] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """A description of the folders."""
        return " or ".join(f"`{folder or '.'}`" for folder in self.folders) or "any folder"

    def is_group(self, name: str) -> bool:
        """Whether one of them contains a folder of this name."""
        return bool(name) and any(_is_folder(self.tree, posixpath.join(folder, name)) for folder in self.folders)

    def header(self, name: str) -> str | None:
        """The package that the first line of a configuration names."""
        config = self.load(name)
        return config.header if config is not None else None

    def load(self, name: str) -> LoadedConfig | None:
        """The configuration of this name; None if there is none."""
        name = name.removesuffix(_SUFFIX)
        if name not in self._loaded:
            self._loaded[name] = self._load(name) if len(self._loaded) < _MAX_FILES else None
        return self._loaded[name]

    def _load(self, name: str) -> LoadedConfig | None:
        for folder in self.folders:
            path = posixpath.normpath(posixpath.join(folder, name + _SUFFIX))
            if path.startswith(("../", "/")):
                continue
            file = self.tree.read(path)
            if isinstance(file, SourceFile):
                return self._parse(path, file)
            if file.kind not in (NoteKind.MISSING, NoteKind.OUTSIDE) and file.detail is not NoteDetail.DIRECTORY:
                self.incomplete = self.incomplete or file.message
        return None

    def _parse(self, path: str, file: SourceFile) -> LoadedConfig | None:
        self.files.append(path)
        found = parse_config(file)
        if found is None or found.document.faults:
            self.incomplete = self.incomplete or f"`{path}` cannot be read completely"
        return found


def parse_config(file: SourceFile) -> LoadedConfig | None:
    """One file of configuration; None if its root is not a mapping. An empty file is an empty mapping."""
    document = lenient_yaml.parse(file.text or "{}")
    if document.root is None and not file.text.partition("#")[0].strip():
        document = lenient_yaml.parse("{}")
    if document.root is None or document.root.kind is not Kind.OBJECT:
        return None
    node_claims = NodeClaims(file, "hydra")
    defaults = from_file(file, document.root, node_claims).members.get("defaults")
    return LoadedConfig(file.path, _header(file.text), file, document, node_claims, defaults)


def _header(text: str) -> str | None:
    for line in text[:2000].splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        if not stripped.startswith("#"):
            return None
        match = _HEADER.match(stripped)
        if match is not None:
            return match[1]
    return None


def _is_folder(tree: Tree, path: str) -> bool:
    found = tree.read(posixpath.normpath(path))
    return isinstance(found, Note) and found.detail is NoteDetail.DIRECTORY


def package_folder(name: str) -> str:
    """The folder of a Python package: `a.b` -> `a/b`."""
    return name.strip(".").replace(".", "/")


def existing(tree: Tree, folders: Sequence[str | None]) -> list[str]:
    """The folders that exist in the tree."""
    return [folder for folder in folders if folder is not None and (not folder or _is_folder(tree, folder))]
