"""Merges a configuration from files and overrides, keeping the location of every value.

Also describes the frameworks that are configured by Hydra or by a single file (`frameworks.toml`).
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from preflight._util import toml
from preflight._util.budget import spend
from preflight.model.job import Known, Note, NoteDetail, NoteKind, Plain, Span, Strength, Unresolved, Value, as_int
from preflight.sources.base import SourceFile, Tree
from preflight.sources.formats import lenient_yaml
from preflight.sources.formats.structured import Document, Kind, Member, Node, NodeClaims
from preflight.sources.value_readers import READERS, Reader


class Style(enum.Enum):
    """How a program builds its configuration."""

    #: `@hydra.main`, or Hydra's `compose`.
    HYDRA = "hydra"
    #: A file named on the line, merged with overrides; files may inherit from others.
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Key:
    """One quantity, and the keys that give it; the first one that is set counts.

    Args:
        default: the value that the framework uses if no key is set; None if it has none.
        when: a key whose value must be true for this one to count.
        role: the part of the job that it describes; empty for the trained ranks.
    """

    quantity: str
    keys: tuple[str, ...]
    default: Plain = None
    read: Reader = as_int
    when: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework.

    Args:
        modules: regular expression for the modules and scripts that start it; empty if it has none.
        recognised_by: sets of keys; its configuration has all keys of at least one set.
        starts_ranks: whether one process starts all ranks, over Ray; otherwise something else starts them.
        option: the word before the configuration file on a line.
        parents: key whose values are further files to be merged first; empty if there is none.
        below: sections that hold the settings, as `modules.pre_trainer.overrides`; empty for the top.
        own: regular expression of the programs that run its own validator; empty if none has one.
        files_only: whether keys on the command line are read elsewhere.
        packages: prefixes of its modules' names that identify it by themselves.
        has_settings: whether rules judge its keys, so that each is stated as `setting.NAME.KEY`.
    """

    name: str
    keys: tuple[Key, ...]
    recognised_by: tuple[tuple[str, ...], ...]
    modules: str = ""
    style: Style = Style.HYDRA
    starts_ranks: bool = True
    option: str = ""
    parents: str = ""
    below: tuple[str, ...] = ("",)
    own: str = ""
    files_only: bool = False
    packages: tuple[str, ...] = ("verl.", "skyrl", "areal.", "primus.", "nemo_rl.")
    has_settings: bool = False


def _framework(row: dict[str, Any]) -> Framework:
    return Framework(
        keys=tuple(Key(read=READERS[key.pop("read", "int")], **toml.with_tuples(key)) for key in row.pop("keys")),
        recognised_by=tuple(tuple(keys) for keys in row.pop("recognised_by")),
        style=Style(row.pop("style", Style.HYDRA)),
        **toml.with_tuples(row),
    )


#: In the order in which they are tried.
FRAMEWORKS = tuple(_framework(row) for row in toml.beside(__file__, "frameworks.toml")["framework"])


#: Marks a value that the user must still set.
MISSING = "???"
#: Numbers that OmegaConf's loader (2.3, `get_yaml_loader`) reads and that YAML 1.1 takes for text: `1e-3`, `3.E5`.
_FLOAT = re.compile(
    r"[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+"
    r"|\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?"
)
#: Longer texts are not numbers.
_MAX_NUMBER_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a value: in a configuration file, where the span is computed on demand, or on a command line."""

    strength: Strength
    node_claims: NodeClaims | None = None
    member: Member | None = None
    written: Span | None = None
    spelled: str = ""

    @property
    def span(self) -> Span:
        """Return the span of the value."""
        if self.node_claims is not None and self.member is not None:
            return self.node_claims.span(self.member.node)
        assert self.written is not None
        return self.written

    @property
    def spelling(self) -> str:
        """Return the value as written, with its key."""
        if self.node_claims is not None and self.member is not None:
            return self.node_claims.spelling(self.member)
        return self.spelled


@dataclass(slots=True)
class Leaf:
    """One value that is neither a mapping nor a list. Known text with `${` in it is an interpolation."""

    value: Value
    place: Place
    before: Setting | None = None


@dataclass(slots=True)
class Section:
    """A mapping."""

    place: Place
    members: dict[str, Setting] = field(default_factory=dict)
    before: Setting | None = None


@dataclass(slots=True)
class ListSetting:
    """A list."""

    place: Place
    items: list[Setting] = field(default_factory=list)
    before: Setting | None = None


Setting: TypeAlias = "Leaf | Section | ListSetting"


def text_of(setting: Setting | None) -> str | None:
    """Return the text of a leaf whose value is known text; else None."""
    if isinstance(setting, Leaf) and isinstance(setting.value, Known) and isinstance(setting.value.value, str):
        return setting.value.value
    return None


def is_reference(setting: Setting | None) -> bool:
    """Return whether a value is an interpolation."""
    return "${" in (text_of(setting) or "")


def is_missing(setting: Setting | None) -> bool:
    """Return whether a value is `???`."""
    return text_of(setting) == MISSING


def from_file(file: SourceFile, root: Node, node_claims: NodeClaims) -> Section:
    """Return the content of a file whose root is a mapping."""
    place = Place(Strength.CONFIG, node_claims, Member("", root.start, root.start, root))
    return _section(root, place, file.text)


def _section(node: Node, place: Place, text: str) -> Section:
    assert place.node_claims is not None
    section = Section(place)
    for member in node.in_force:
        section.members[member.key] = _setting(member.node, Place(place.strength, place.node_claims, member), text)
    return section


def _setting(node: Node, place: Place, text: str) -> Setting:
    spend()
    if node.kind is Kind.OBJECT:
        return _section(node, place, text)
    if node.kind is Kind.ARRAY:
        found = ListSetting(place)
        for item in node.items:
            own = Member("", item.start, item.start, item)
            found.items.append(_setting(item, Place(place.strength, place.node_claims, own), text))
        return found
    if node.kind is Kind.TEMPLATE and str(node.value).startswith("${"):
        return Leaf(Known(node.value), place)
    if node.kind is not Kind.SCALAR:
        return Leaf(Unresolved(f"{str(node.value)[:60]}: a placeholder that is replaced later"), place)
    return Leaf(Known(_number(node, text)), place)


def _number(node: Node, text: str) -> Plain:
    value = node.value
    if not isinstance(value, str) or len(value) > _MAX_NUMBER_LENGTH or text[node.start : node.start + 1] in "\"'|>":
        return value
    return float(value.replace("_", "")) if _FLOAT.fullmatch(value) else value


def copy_setting(setting: Setting) -> Setting:
    """Return a copy of the value, for another place in the tree."""
    spend()
    if isinstance(setting, Section):
        return replace(setting, members={key: copy_setting(item) for key, item in setting.members.items()})
    if isinstance(setting, ListSetting):
        return replace(setting, items=[copy_setting(item) for item in setting.items])
    return replace(setting)


def wrap_in_package(section: Section, package: str) -> Section:
    """Return the content below the keys of a package (`a.b`); unchanged if the package is empty."""
    for key in reversed(package.split(".") if package else []):
        section = Section(section.place, {key: section})
    return section


def split_key(key: str) -> list[str]:
    """Return the parts of `a.b[c].d`."""
    head, *_ = re.split(r"[.\[]", key, maxsplit=1)
    rest = re.finditer(r"\.([^.\[]*)|\[(.*?)\]", key[len(head) :])
    return [head, *(match[1] if match[1] is not None else match[2] for match in rest)]


def leaves(setting: Setting, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf | ListSetting]]:
    """Yield every value that is not a mapping, with its path of keys."""
    if isinstance(setting, Section):
        for key, item in setting.members.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, setting


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
        header: the package that its first line names; None if it names none.
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
        """Return its content without the defaults list; a new one each time."""
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
        """Return a description of the folders."""
        return " or ".join(f"`{folder or '.'}`" for folder in self.folders) or "any folder"

    def is_group(self, name: str) -> bool:
        """Return whether one of the folders contains a folder of this name."""
        return bool(name) and any(_is_folder(self.tree, posixpath.join(folder, name)) for folder in self.folders)

    def header(self, name: str) -> str | None:
        """Return the package that the first line of a configuration names."""
        config = self.load(name)
        return config.header if config is not None else None

    def load(self, name: str) -> LoadedConfig | None:
        """Return the configuration of this name; None if there is none."""
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
    """Return one configuration file; None if its root is not a mapping. An empty file is an empty mapping."""
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
    """Return the folder of a Python package: `a.b` -> `a/b`."""
    return name.strip(".").replace(".", "/")


def existing(tree: Tree, folders: Sequence[str | None]) -> list[str]:
    """Return the folders that exist in the tree."""
    return [folder for folder in folders if folder is not None and (not folder or _is_folder(tree, folder))]
