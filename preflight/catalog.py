"""Every rule, check, source, executor and reporter there is, found through entry points and loaded one by one.

The built-in packs come the same way as a stranger's, so the plugin path runs every time. A pack is a tuple of
`module:attribute` strings: naming them costs nothing, and one that cannot be loaded is reported and left out
instead of taking the rest with it. Only installed distributions are looked at, never the tree being judged.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from preflight.judgement import Check, Rule

RULES = "preflight.rules"
CHECKS = "preflight.checks"
SOURCES = "preflight.sources"
EXECUTORS = "preflight.executors"
REPORTERS = "preflight.reporters"


@dataclass(frozen=True, slots=True)
class Broken:
    """Something a plugin names that cannot be loaded. `where` is the entry of the pack, `why` the error."""

    group: str
    plugin: str
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one group holds: the objects in pack order, and what could not be loaded."""

    items: tuple[Any, ...]
    broken: tuple[Broken, ...]
    plugins: tuple[str, ...]


@functools.cache
def load(group: str) -> Loaded:
    """Load every pack of an entry-point group, built-in packs first, then by distribution name."""
    items: list[Any] = []
    broken: list[Broken] = []
    plugins: list[str] = []
    for point in _points(group):
        plugin = _label(point)
        plugins.append(plugin)
        try:
            pack = point.load()
            entries = tuple(pack)
        except Exception as error:
            broken.append(Broken(group, plugin, point.value, _why(error)))
            continue
        for entry in entries:
            try:
                items.append(_resolve(entry))
            except Exception as error:
                broken.append(Broken(group, plugin, str(entry), _why(error)))
    return Loaded(tuple(items), tuple(broken), tuple(plugins))


def rules() -> tuple[Rule, ...]:
    """All rules, by id. Raises ValueError when two share an id or a name."""
    return _unique(item for item in load(RULES).items if isinstance(item, Rule))


def checks() -> tuple[Check, ...]:
    """All checks, by id. Raises ValueError when two share an id or a name."""
    return _unique(item for item in load(CHECKS).items if isinstance(item, Check))


def sources() -> tuple[Any, ...]:
    """All sources (`preflight.sources.base.Source`), in the order in which they are asked."""
    return load(SOURCES).items


def named(group: str, name: str) -> Any:
    """The executor or reporter called `name`. Raises KeyError with the valid names."""
    found = {item.name: item for item in load(group).items}
    if name not in found:
        raise KeyError(f"there is no {name!r}; known are {', '.join(sorted(found)) or 'none'}")
    return found[name]


def _points(group: str) -> list[EntryPoint]:
    found = {(point.name, point.value): point for point in entry_points(group=group)}
    return sorted(found.values(), key=lambda p: (p.name != "builtin", _label(p), p.name, p.value))


def _label(point: EntryPoint) -> str:
    distribution = point.dist
    return f"{distribution.name} {distribution.version}" if distribution is not None else point.name


def _resolve(entry: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _unique(found: Any) -> tuple[Any, ...]:
    by_id: dict[str, Any] = {}
    names: dict[str, str] = {}
    for item in found:
        meta = item.meta
        other = by_id.get(meta.id)
        if other is not None and other is not item:
            raise ValueError(f"{meta.id} is both {other.meta.name} and {meta.name}; ids are never reused")
        if names.setdefault(meta.name, meta.id) != meta.id:
            raise ValueError(f"{meta.name} names both {names[meta.name]} and {meta.id}")
        by_id[meta.id] = item
    return tuple(by_id[key] for key in sorted(by_id))
