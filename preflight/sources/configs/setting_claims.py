"""Claims of every key of a framework's configuration, as `setting.FRAMEWORK.key`, with dots between the keys of
sections.

The tables of what a framework rejects (`data/settings/` of the rules) use these names of keys. The value of a section
is `SECTION`, because claims have plain values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from preflight._util.budget import spend
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Plain, Unresolved, Value, lift
from preflight.model.job.value import LISTED_SECTION, SECTION, SETTING_PREFIX
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of

#: Keys of one file that are claimed.
_MAX_KEYS = 400
_MAX_DEPTH = 4
#: Sections of a list whose keys are claimed, as `datasets.item0.type`.
_MAX_LISTED = 8
_FLOAT_WITHOUT_DOT = re.compile(r"[-+]?\d{1,40}[eE][-+]?\d{1,4}")
#: What stands under a key with a secret's name, and is none: a list of names of secrets.
_NAME_OF_SECRET = re.compile(r"(?:[a-z]{1,20}:)?[A-Z][A-Z_]{2,40}")
#: A name; as a key of SkyPilot's mounts also a path.
_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}|[/~][A-Za-z0-9_/-]{0,80}")


@dataclass(frozen=True, slots=True)
class _Reader:
    """How the keys of one configuration are named and read."""

    framework: str
    #: How a key is written in a path; empty for a key that is left out of it.
    key_of: Callable[[str], str]
    read: Callable[[Node], Value]
    #: Sections and lists that are not read into.
    stops: Callable[[Member], bool]
    because: tuple[Claim, ...]
    #: Whether the names of listed sections are stated together, as `tasks.names`.
    names: bool


def state_settings(
    node_claims: NodeClaims,
    root: Node,
    framework: str,
    *,
    only: Iterable[str] = (),
    floats_without_dot: bool = False,
    key_of: Callable[[str], str] = lambda key: key,
    stops: Callable[[Member], bool] = lambda member: False,
    read: Callable[[Node], Value] = value_of,
    because: tuple[Claim, ...] = (),
    names: bool = False,
) -> None:
    """Claim every key of a configuration; of duplicate keys the last is in force.

    Args:
        only: the top-level keys to claim; empty for all.
        floats_without_dot: whether the framework reads `1e-4` as a number (OmegaConf does, PyYAML reads a text).
        key_of: how a key is written in a path.
        stops: whether a section or list is stated without what is in it.
        read: the value of a node.
        because: the claims that each claim rests on.
        names: whether the names of listed sections are stated together, as `tasks.names`.
    """
    wanted = frozenset(only)
    left = [_MAX_KEYS]
    reader = _Reader(framework, key_of, _float_of if floats_without_dot else read, stops, because, names)
    for member in root.in_force:
        if not wanted or member.key in wanted:
            _state(node_claims, member, key_of(member.key), reader, left)


def _state(node_claims: NodeClaims, member: Member, path: str, reader: _Reader, left: list[int]) -> None:
    node = member.node
    hidden = is_secret(member.key)
    if left[0] <= 0 or not _KEY.fullmatch(reader.key_of(member.key)) or (hidden and _may_be_secret(node)):
        return
    left[0] -= 1
    spend(1)
    quantity = f"{SETTING_PREFIX}{reader.framework}.{path}"
    inner = node.kind is Kind.OBJECT
    stops = reader.stops(member)
    key_only = inner or stops
    spelling = node_claims.file.text[member.key_start : member.key_end] if key_only else node_claims.spelling(member)
    claim = Claim(
        quantity,
        Known(SECTION) if inner else _value(node, reader.read),
        node_claims.places.span(member.key_start, member.key_end),
        spelling,
        node_claims.source,
        node_claims.scope,
        node_claims.strength,
        because=reader.because,
    )
    node_claims.claims.append(claim)
    if node.kind is Kind.ARRAY and path.count(".") < _MAX_DEPTH:
        if reader.names and any(item.member("name") for item in node.items):
            listed = [item.at("name") for item in node.items]
            # The names of variables look like placeholders.
            read = value_of if stops else reader.read
            values = [Known(f"({at})") if name is None else read(name) for at, name in enumerate(listed)]
            node_claims.claims.append(replace(claim, quantity=f"{quantity}.names", value=lift(_together, *values)))
        for number, item in enumerate(() if stops else node.items[:_MAX_LISTED]):
            for below in item.in_force if item.kind is Kind.OBJECT else ():
                _state(node_claims, below, f"{path}.item{number}.{reader.key_of(below.key)}", reader, left)
    if hidden:
        _state_names(node_claims, node, quantity)
    elif inner and path.count(".") < _MAX_DEPTH and not stops:
        for below in node.in_force:
            _state(node_claims, below, f"{path}.{reader.key_of(below.key)}", reader, left)


def _may_be_secret(node: Node) -> bool:
    """Whether the value of a key with a secret's name may be one.

    A section, a truth value, null, and a list of names of secrets are not.
    """
    if node.kind is Kind.ARRAY:
        names = [item.value if item.kind is Kind.SCALAR else None for item in node.items]
        return not all(isinstance(name, str) and _NAME_OF_SECRET.fullmatch(name) for name in names)
    return node.kind is not Kind.OBJECT and not (
        node.kind is Kind.SCALAR and (node.value is None or isinstance(node.value, bool))
    )


def _together(*items: Plain) -> Plain:
    return tuple(str(item) for item in items)


def _state_names(node_claims: NodeClaims, section: Node, path: str) -> None:
    """Claim that keys of a section with secrets are given, without a value."""
    for member in section.in_force[:_MAX_LISTED]:
        if _KEY.fullmatch(member.key):
            span = node_claims.places.span(member.key_start, member.key_end)
            value = Unresolved("part of a section with secrets")
            node_claims.claims.append(
                Claim(
                    f"{path}.{member.key}",
                    value,
                    span,
                    member.key,
                    node_claims.source,
                    node_claims.scope,
                    node_claims.strength,
                )
            )


def _value(node: Node, read: Callable[[Node], Value]) -> Value:
    if node.kind is Kind.ARRAY and node.items and all(item.kind is Kind.OBJECT for item in node.items):
        return Known((LISTED_SECTION,) * len(node.items))
    if node.kind is Kind.ARRAY and not all(item.kind is Kind.SCALAR for item in node.items):
        return Unresolved("a list of lists or of sections")
    return read(node)


def _float_of(node: Node) -> Value:
    """The value as OmegaConf reads it."""
    value = value_of(node)
    if isinstance(value, Known) and isinstance(value.value, str) and _FLOAT_WITHOUT_DOT.fullmatch(value.value):
        return Known(float(value.value))
    return value
