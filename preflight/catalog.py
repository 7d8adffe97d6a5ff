"""Every rule, check, source, executor and reporter there is, found through entry points and loaded one by one.

The built-in packs come the same way as a stranger's, so the plugin path runs every time. A pack is a tuple of
`module:attribute` strings: naming them costs nothing, and one that cannot be loaded is reported and left out
instead of taking the rest with it. Only installed distributions are looked at, and files of checks that the user
names (`take`); never the tree being judged.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preflight.examination import Examine
from preflight.judgement import Check, MakeExhibits, Rule
from preflight.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from preflight.own_file import Own

RULES = "preflight.rules"
CHECKS = "preflight.checks"
SOURCES = "preflight.sources"
EXECUTORS = "preflight.executors"
REPORTERS = "preflight.reporters"


@dataclass(frozen=True, slots=True)
class Broken:
    """Something a plugin names that cannot be loaded or used. `where` is the entry of the pack, `why` the error.

    Args:
        group: the entry-point group.
        plugin: the distribution and its version.
    """

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


@dataclass(frozen=True, slots=True)
class Exhibitor:
    """A function of a pack of checks that makes exhibits of a recording."""

    plugin: str
    where: str
    make: MakeExhibits


@dataclass(frozen=True, slots=True)
class Examiner:
    """A function of a pack of checks that looks at the machine preflight runs on."""

    plugin: str
    where: str
    make: Examine


#: Files of rules and checks that the user named.
_own_files: tuple[Own, ...] = ()


def take(paths: Iterable[Path]) -> None:
    """Let the rules and checks of these Python files take part, and of no others that were taken before.

    Each file is run as a module of its own, with all that the user may do; none is ever taken because a tree names it.

    Raises:
        UsageError: a file cannot be read or run, or holds no rule, no check and no exhibit.
    """
    global _own_files
    chosen = tuple(dict.fromkeys(path.absolute() for path in paths))
    if chosen or _own_files:
        from preflight.own_file import forget, read

        forget()
        _own_files = tuple(read(path) for path in chosen)
        load.cache_clear()


#: The stages of a run; None for all there are. Checks and exhibits of others need not be loaded.
Stages = frozenset[str] | None


@functools.cache
def load(group: str, stages: Stages = None) -> Loaded:
    """Load every pack of an entry-point group, built-in packs first, then by distribution name.

    Of checks, those for these `stages`: a pack may say in `STAGES` beside `PACK` which of its packages and modules are
    for one stage alone.
    """
    items: list[Any] = []
    broken: list[Broken] = []
    plugins: list[str] = []
    points = _points(group)
    if not points:
        why = "no installed distribution offers any; preflight has to be installed, not only be on the path"
        broken.append(Broken(group, "preflight", "entry points", why))
    for point in points:
        plugin = _label(point)
        plugins.append(plugin)
        try:
            entries = _wanted(point, _entries(point.load()), stages)
        except (Exception, SystemExit) as error:
            broken.append(Broken(group, plugin, point.value, _why(error)))
            continue
        for entry in entries:
            try:
                item = _resolve(entry)
                _refuse_stranger(group, item, items)
            except (Exception, SystemExit) as error:
                broken.append(Broken(group, plugin, str(entry), _why(error)))
            else:
                items.append(item)
    for own in _own_files if group in (RULES, CHECKS) else ():
        plugins.append(own.label)
        for made in own.items:
            if isinstance(made, Rule if group == RULES else Check):
                try:
                    _refuse_stranger(group, made, items)
                except ValueError as error:
                    broken.append(Broken(group, own.label, made.meta.id, _why(error)))
                else:
                    items.append(made)
    return Loaded(tuple(items), tuple(broken), tuple(plugins))


def rules() -> tuple[Rule, ...]:
    """All rules, by id."""
    return tuple(sorted(load(RULES).items, key=lambda item: item.meta.id))


def checks(stages: Stages = None) -> tuple[Check, ...]:
    """All checks that a run of these stages needs, by id."""
    return tuple(sorted(load(CHECKS, stages).items, key=lambda item: item.meta.id))


def sources() -> tuple[Any, ...]:
    """All sources (`preflight.sources.base.Source`), in the order in which they are asked."""
    return load(SOURCES).items


def areas(*groups: str) -> dict[str, str]:
    """What the areas of rules and checks are about, as the packs (of these `groups`) say in `AREAS` beside `PACK`."""
    found: dict[str, str] = {}
    for point in (point for group in groups or (RULES, CHECKS) for point in _points(group)):
        try:
            said = getattr(importlib.import_module(point.module), "AREAS", None)
        except (Exception, SystemExit):
            # What is wrong with a pack is told where its rules and checks are wanted.
            continue
        for area, title in said.items() if isinstance(said, dict) else ():
            found.setdefault(str(area), str(title))
    for own in _own_files:
        for area, title in own.areas:
            found.setdefault(area, title)
    return found


def symptom_tables() -> dict[str, tuple[str, ...]]:
    """The tables of symptoms that packs of rules and checks bring along: their package, and paths below its folder.

    A pack names them in `SYMPTOMS` beside `PACK`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for point in (*_points(RULES), *_points(CHECKS)):
        try:
            said = getattr(importlib.import_module(point.module), "SYMPTOMS", ())
        except (Exception, SystemExit):
            # What is wrong with a pack is told where its rules and checks are wanted.
            continue
        if isinstance(said, tuple) and said:
            found[point.module.partition(".")[0]] = tuple(map(str, said))
    return found


def exhibitors(stages: Stages = None) -> tuple[tuple[Exhibitor, ...], tuple[Broken, ...]]:
    """What makes exhibits of a run of these stages, and what of it cannot be loaded.

    Packs of checks name it in `EXHIBITS` beside `PACK`; files that the user named hold it under that name.
    """
    own = [(own.label, entry) for own in _own_files for entry in own.exhibits]
    found, broken = _functions("EXHIBITS", own, stages)
    return tuple(Exhibitor(*one) for one in found), broken


def examiners() -> tuple[tuple[Examiner, ...], tuple[Broken, ...]]:
    """What looks at this machine, as packs of checks name it in `EXAMINES` beside `PACK`, and what cannot be loaded."""
    found, broken = _functions("EXAMINES")
    return tuple(Examiner(*one) for one in found), broken


def _functions(
    attribute: str, more: Iterable[tuple[str, Any]] = (), stages: Stages = None
) -> tuple[list[tuple[str, str, Any]], tuple[Broken, ...]]:
    """The functions that packs of checks name in this attribute, and `more`: each with its pack and what it is called.

    Also what of it cannot be loaded.
    """
    found: list[tuple[str, str, Any]] = []
    broken: list[Broken] = []
    listed: list[tuple[str, Any]] = []
    for point in _points(CHECKS):
        try:
            entries = _entries(getattr(importlib.import_module(point.module), attribute, ()))
            entries = _wanted(point, entries, stages)
            listed.extend((_label(point), entry) for entry in entries)
        except (Exception, SystemExit) as error:
            broken.append(Broken(CHECKS, _label(point), attribute, _why(error)))
    for plugin, entry in (*listed, *more):
        where = str(getattr(entry, "__name__", entry))
        try:
            make = _resolve(entry)
            if not callable(make):
                raise TypeError(f"it is no function but {type(make).__name__}")
        except (Exception, SystemExit) as error:
            broken.append(Broken(CHECKS, plugin, where, _why(error)))
        else:
            found.append((plugin, where, make))
    return found, tuple(broken)


def named(group: str, name: str) -> Any:
    """The executor or reporter called `name`. Raises KeyError with the nearest and the valid names."""
    if (own := _own(group, name)) is not None:
        return own
    found = {item.name: item for item in load(group).items}
    if name not in found:
        near = get_close_matches(name.lower(), found, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise KeyError(f"there is no {name!r}; {hint}known are {', '.join(sorted(found)) or 'none'}")
    return found[name]


def _own(group: str, name: str) -> Any:
    """The one of ours that lies in a module of this name and is called so, which needs none of the others; else None.

    Ours come first, so that no plugin's has its name.
    """
    for point in _points(group):
        entries = point.load() if point.module.partition(".")[0] == "preflight" else ()
        for entry in entries:
            if isinstance(entry, str) and entry.partition(":")[0].rpartition(".")[2] == name:
                # What cannot be loaded is told of where all are.
                with suppress(Exception):
                    found = _resolve(entry)
                    return found if found.name == name else None
    return None


def names_of(items: Iterable[Rule | Check]) -> set[str]:
    """The ids, names and areas of `items`."""
    return {name for item in items for name in (item.meta.id, item.meta.name, item.meta.area)}


def unknown_names(names: Iterable[str], items: Iterable[Rule | Check]) -> dict[str, tuple[str, ...]]:
    """Those of `names` that are no id, name or area of `items`, each with the nearest ones."""
    known = names_of(items)
    return {name: nearest(name, known) for name in names if name.upper() not in known and name.lower() not in known}


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three of the `known` ids and names that look most like `name`."""
    likeness = {one: SequenceMatcher(None, name.lower(), one.lower()).ratio() for one in known}
    near = sorted((one for one in likeness if likeness[one] >= 0.5), key=lambda one: (-likeness[one], one))
    return tuple(near[:3])


@functools.cache
def _installed() -> Any:
    """Everything that installed distributions offer; all of their files are read for it, so once.

    Its type differs between versions of Python; what is asked of it, `select`, does not.
    """
    return entry_points()


def _points(group: str) -> list[EntryPoint]:
    found = {(point.name, point.value): point for point in _installed().select(group=group)}
    return sorted(found.values(), key=lambda p: (p.name != "builtin", _label(p), p.name, p.value))


def _entries(pack: Any) -> tuple[Any, ...]:
    if isinstance(pack, str):
        raise TypeError("a pack is a tuple of 'module:attribute' strings, not one string")
    return tuple(pack)


def _wanted(point: EntryPoint, entries: Sequence[Any], stages: Stages) -> tuple[Any, ...]:
    """Those of a pack's entries that are not for another stage alone."""
    said = {} if stages is None else getattr(importlib.import_module(point.module), "STAGES", {})
    others = tuple(f"{place}." for place, stage in said.items() if stage not in (stages or ()))
    return tuple(
        entry for entry in entries if not isinstance(entry, str) or not f"{entry.partition(':')[0]}.".startswith(others)
    )


def _refuse_stranger(group: str, item: Any, items: Sequence[Any]) -> None:
    """Raise TypeError or ValueError for something that is not of this group, or whose name is taken."""
    if group not in (RULES, CHECKS):
        if not isinstance(getattr(item, "name", None), str):
            raise TypeError(f"it has no name, which everything in {group} has")
        if any(item.name == other.name for other in items):
            raise ValueError(f"the name {item.name!r} is taken")
        return
    expected = Rule if group == RULES else Check
    if not isinstance(item, expected):
        raise TypeError(f"it is no {expected.__name__.lower()} but {type(item).__name__}; the decorator makes one")
    for other in items:
        if item.meta.id == other.meta.id or item.meta.name == other.meta.name:
            taken = f"{other.meta.id} {other.meta.name}"
            raise ValueError(f"{item.meta.id} {item.meta.name} collides with {taken}; ids and names are used once")


def _label(point: EntryPoint) -> str:
    return _name_of(point.dist) if point.dist is not None else point.name


@functools.cache
def _name_of(distribution: Distribution) -> str:
    """Name and version, as the head of what a distribution says of itself has them.

    The library reads all of that, a long description included, with a parser of letters.
    """
    head, _, _ = (distribution.read_text("METADATA") or "").partition("\n\n")
    said = dict(line.partition(": ")[::2] for line in head.splitlines())
    if "Name" in said and "Version" in said:
        return f"{said['Name']} {said['Version']}"
    return f"{distribution.name} {distribution.version}"


def _resolve(entry: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    # A pack may name a class that needs no arguments, so that a module need not make an instance at import.
    return found() if isinstance(found, type) else found


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
