"""A configuration merged from files and overrides, in which every value keeps its location and the value that it
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Known, Plain, Span, Strength, Unresolved, Value
from preflight.sources.base import SourceFile
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims

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
    """Where a value is written: in a configuration file, where the span is computed on demand, or on a line."""

    strength: Strength
    node_claims: NodeClaims | None = None
    member: Member | None = None
    written: Span | None = None
    spelled: str = ""

    @property
    def span(self) -> Span:
        """The span of the value."""
        if self.node_claims is not None and self.member is not None:
            return self.node_claims.span(self.member.node)
        assert self.written is not None
        return self.written

    @property
    def spelling(self) -> str:
        """The value as written, with its key."""
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
class Sequence:
    """A list."""

    place: Place
    items: list[Setting] = field(default_factory=list)
    before: Setting | None = None


Setting: TypeAlias = "Leaf | Section | Sequence"


def text_of(setting: Setting | None) -> str | None:
    """The text of a leaf whose value is known text; else None."""
    if isinstance(setting, Leaf) and isinstance(setting.value, Known) and isinstance(setting.value.value, str):
        return setting.value.value
    return None


def is_reference(setting: Setting | None) -> bool:
    """Whether a value is an interpolation."""
    return "${" in (text_of(setting) or "")


def is_missing(setting: Setting | None) -> bool:
    """Whether a value is `???`."""
    return text_of(setting) == MISSING


def from_file(file: SourceFile, root: Node, node_claims: NodeClaims) -> Section:
    """The content of a file whose root is a mapping."""
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
        found = Sequence(place)
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
    """A copy of the value, for another place in the tree."""
    spend()
    if isinstance(setting, Section):
        return Section(
            setting.place, {key: copy_setting(item) for key, item in setting.members.items()}, setting.before
        )
    if isinstance(setting, Sequence):
        return Sequence(setting.place, [copy_setting(item) for item in setting.items], setting.before)
    return Leaf(setting.value, setting.place, setting.before)


def wrap_in_package(section: Section, package: str) -> Section:
    """The content below the keys of a package (`a.b`); unchanged if the package is empty."""
    for key in reversed(package.split(".") if package else []):
        section = Section(section.place, {key: section})
    return section


def split_key(key: str) -> list[str]:
    """The parts of `a.b[c].d`."""
    head, *_ = re.split(r"[.\[]", key, maxsplit=1)
    parts = [head]
    for match in re.finditer(r"\.([^.\[]*)|\[(.*?)\]", key[len(head) :]):
        parts.append(match[1] if match[1] is not None else match[2])
    return parts


def leaves(setting: Setting, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf | Sequence]]:
    """Every value that is not a mapping, with its path of keys."""
    if isinstance(setting, Section):
        for key, item in setting.members.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, setting
