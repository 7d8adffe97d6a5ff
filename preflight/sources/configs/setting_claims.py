"""Claims of every key of a framework's configuration, as `setting.FRAMEWORK.key`, with dots between the keys of
sections.

The tables of what a framework rejects (`data/settings/` of the rules) use these names of keys. The value of a section
is `SECTION`, because claims have plain values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from preflight._util.budget import spend
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Unresolved, Value
from preflight.model.job.quantities import LISTED_SECTION, SECTION, SETTING_PREFIX
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, value_of

#: Keys of one file that are claimed.
_MAX_KEYS = 400
_MAX_DEPTH = 4
#: Sections of a list whose keys are claimed, as `datasets.item0.type`.
_MAX_LISTED = 8
_FLOAT_WITHOUT_DOT = re.compile(r"[-+]?\d{1,40}[eE][-+]?\d{1,4}")
#: A name; as a key of SkyPilot's mounts also a path.
_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}|[/~][A-Za-z0-9_/-]{0,80}")


def state_settings(
    node_claims: NodeClaims,
    root: Node,
    framework: str,
    *,
    renamed: Callable[[str], str] = lambda path: path,
    only: Iterable[str] = (),
    floats_without_dot: bool = False,
) -> None:
    """Claim every key of a configuration; of duplicate keys the last is in force.

    Args:
        renamed: changes a path before it is claimed.
        only: the top-level keys to claim; empty for all.
        floats_without_dot: whether the framework reads `1e-4` as a number (OmegaConf does, PyYAML reads a text).
    """
    wanted = frozenset(only)
    left = [_MAX_KEYS]
    for member in root.in_force:
        if not wanted or member.key in wanted:
            _state(
                node_claims, member, framework, member.key, renamed, left, _float_of if floats_without_dot else value_of
            )


def _state(
    node_claims: NodeClaims,
    member: Member,
    framework: str,
    path: str,
    renamed: Callable[[str], str],
    left: list[int],
    read: Callable[[Node], Value],
) -> None:
    node = member.node
    hidden = is_secret(member.key)
    if left[0] <= 0 or not _KEY.fullmatch(member.key) or (hidden and node.kind is not Kind.OBJECT):
        return
    left[0] -= 1
    spend(1)
    span = node_claims.places.span(member.key_start, member.key_end)
    inner = node.kind is Kind.OBJECT
    spelling = node_claims.file.text[member.key_start : member.key_end] if inner else node_claims.spelling(member)
    node_claims.claims.append(
        Claim(
            f"{SETTING_PREFIX}{framework}.{renamed(path)}",
            Known(SECTION) if inner else _value(node, read),
            span,
            spelling,
            node_claims.source,
            node_claims.scope,
            node_claims.strength,
        )
    )
    if node.kind is Kind.ARRAY and path.count(".") < _MAX_DEPTH:
        for number, item in enumerate(node.items[:_MAX_LISTED]):
            for below in item.in_force if item.kind is Kind.OBJECT else ():
                _state(node_claims, below, framework, f"{path}.item{number}.{below.key}", renamed, left, read)
    if hidden:
        _state_names(node_claims, node, f"{SETTING_PREFIX}{framework}.{renamed(path)}")
    elif inner and path.count(".") < _MAX_DEPTH:
        for below in node.in_force:
            _state(node_claims, below, framework, f"{path}.{below.key}", renamed, left, read)


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
