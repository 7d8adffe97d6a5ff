"""Finds every rule, check, source, executor and reporter in entry points and in files that the user names, and loads
them one by one.

The built-in packs load through the same entry points as the packs of other distributions. An item that cannot be loaded
is reported and skipped. Only installed distributions are searched, and files of rules and checks that the user names
(`use_plugin_files`), but never the tree that is judged.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from preflight._util import regular_file
from preflight._util.usage_error import MAX_LENGTH, UsageError, similar_names
from preflight.plugins.authoring import Check, Rule
from preflight.plugins.pack import Pack, as_pack

#: The prefix of the names of modules that are made from plugin files, before the name of the file.
MODULE_PREFIX = "preflight_own_"
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A plugin file: its name with a hash of its content, its rules and checks, and areas and charts of its `PACK`."""

    label: str
    items: tuple[Rule | Check, ...]
    areas: tuple[tuple[str, str], ...]
    charts: tuple[Any, ...]


def _read_plugin_file(path: Path) -> PluginFile:
    """Run a plugin file as a module named after it, so that probes have stable names. Raises UsageError."""
    try:
        data = regular_file.read(path, _MAX_BYTES)
    except OSError as error:
        raise UsageError(f"--plugin {path} cannot be read: {error.strerror}") from None
    if path.suffix != ".py":
        raise UsageError(f"--plugin {path}: expected a Python file")
    name = MODULE_PREFIX + re.sub(r"\W", "_", path.stem)
    loaded_module = sys.modules.get(name)
    if loaded_module is not None and Path(str(loaded_module.__file__)) != path:
        raise UsageError(f"--plugin {path}: {loaded_module.__file__} has the same name; rename one of them")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    linecache.checkcache(str(path))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"--plugin {_error_location(path, error)}: {type(error).__name__}: {error}") from None
    items = tuple(dict.fromkeys(item for item in vars(module).values() if isinstance(item, Rule | Check)))
    pack = getattr(module, "PACK", Pack())
    if not isinstance(pack, Pack):
        raise UsageError(f"--plugin {path}: PACK is a {type(pack).__name__}; expected a preflight.plugin.Pack")
    if not items and not pack.charts:
        raise UsageError(
            f"--plugin {path} defines no rule and no check; decorate functions with `rule` or `check` of "
            "preflight.plugin"
        )
    areas = tuple((str(area), str(title)) for area, title in pack.areas.items())
    label = f"{path.name} sha256:{hashlib.sha256(data).hexdigest()[:12]}"
    return PluginFile(label, items, areas, pack.charts)


def _unload_plugin_files() -> None:
    for name in [name for name in sys.modules if name.startswith(MODULE_PREFIX)]:
        del sys.modules[name]


def _error_location(path: Path, error: BaseException) -> str:
    """Return the file and the line of the error; only the file if the line is unknown."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


RULES = "preflight.rules"
CHECKS = "preflight.checks"
SOURCES = "preflight.sources"
EXECUTORS = "preflight.executors"
REPORTERS = "preflight.reporters"

#: The largest number of unknown names for which similar names are suggested.
_MAX_HINTS = 10


@dataclass(frozen=True, slots=True)
class Broken:
    """A plugin's item that cannot be loaded or used. `where` is the entry of the pack, `why` the error.

    Args:
        group: the entry-point group.
        plugin: the distribution and its version.
    """

    group: str
    plugin: str
    where: str
    why: str


class Loaded(NamedTuple):
    """The content of an entry-point group: objects in pack order, items that could not be loaded, distributions."""

    items: tuple[Any, ...]
    broken: tuple[Broken, ...]
    plugins: tuple[str, ...]


class PackFunction(NamedTuple):
    """A function of a pack of checks that makes charts or measurements of a recording, or examines this machine."""

    plugin: str
    where: str
    make: Callable[..., Any]


#: Functions of packs, and the functions that cannot be loaded.
PackFunctions = tuple[tuple[PackFunction, ...], tuple[Broken, ...]]

#: Files of rules and checks that the user named.
_plugin_files: tuple[PluginFile, ...] = ()
_plugin_paths: tuple[Path, ...] = ()


def use_plugin_files(paths: Iterable[Path]) -> None:
    """Use the rules and checks of these Python files instead of earlier ones. Raises UsageError.

    Each file is run as its own module, with all permissions of the user. A file is never used because a tree names it.
    """
    global _plugin_files, _plugin_paths
    chosen_paths = tuple(dict.fromkeys(path.absolute() for path in paths))
    if chosen_paths or _plugin_files:
        _unload_plugin_files()
        _plugin_files = tuple(_read_plugin_file(path) for path in chosen_paths)
        _plugin_paths = chosen_paths
        load.cache_clear()


@contextmanager
def added_plugin_files(paths: Sequence[Path]) -> Iterator[None]:
    """Use these Python files as well, until the block ends. Raises UsageError as `use_plugin_files` does."""
    earlier_paths = _plugin_paths
    use_plugin_files((*earlier_paths, *paths))
    try:
        yield
    finally:
        use_plugin_files(earlier_paths)


#: The stages of a run; None for all. Checks and charts of other stages need not be loaded.
Stages = frozenset[str] | None


@functools.cache
def load(group: str, stages: Stages = None) -> Loaded:
    """Load the packs of a group, built-in first, then by name; with `stages`, only the checks of these stages."""
    items: list[Any] = []
    broken: list[Broken] = []
    plugins: list[str] = []
    packs = _entry_points(group)
    if not packs:
        reason = (
            "no installed distribution provides any; install preflight instead of only adding it to the import path"
        )
        broken.append(Broken(group, "preflight", "entry points", reason))
    for point in packs:
        plugin = _distribution_name(point)
        plugins.append(plugin)
        try:
            pack = as_pack(point.load())
            entries = _select_by_stages(pack, pack.items, stages)
        except (Exception, SystemExit) as error:
            broken.append(Broken(group, plugin, point.value, error_text(error)))
            continue
        for entry in entries:
            try:
                entry_items = _resolve_all(group, entry)
            except (Exception, SystemExit) as error:
                broken.append(Broken(group, plugin, str(entry), error_text(error)))
                continue
            for item in entry_items:
                try:
                    _check_unique(group, item, items)
                except (TypeError, ValueError) as error:
                    broken.append(Broken(group, plugin, str(entry), error_text(error)))
                else:
                    items.append(item)
    for plugin_file in _plugin_files if group in (RULES, CHECKS) else ():
        plugins.append(plugin_file.label)
        for own_item in plugin_file.items:
            if isinstance(own_item, Rule if group == RULES else Check):
                try:
                    _check_unique(group, own_item, items)
                except ValueError as error:
                    broken.append(Broken(group, plugin_file.label, own_item.meta.id, error_text(error)))
                else:
                    items.append(own_item)
    return Loaded(tuple(items), tuple(broken), tuple(plugins))


def rules() -> tuple[Rule, ...]:
    """Return all rules, by id."""
    return tuple(sorted(load(RULES).items, key=lambda item: item.meta.id))


def checks(stages: Stages = None) -> tuple[Check, ...]:
    """Return all checks that a run of these stages needs, by id."""
    return tuple(sorted(load(CHECKS, stages).items, key=lambda item: item.meta.id))


def items_with_ids(ids: Collection[str]) -> tuple[Rule | Check, ...]:
    """Return the rules and checks with these ids. Modules whose text contains none of the ids are not imported."""
    items: list[Rule | Check] = [item for file in _plugin_files for item in file.items if item.meta.id in ids]
    for group in (RULES, CHECKS):
        for _, pack in _usable_packs(group):
            for entry in pack.items:
                if isinstance(entry, str) and not _may_define(entry.partition(":")[0], ids):
                    continue
                with suppress(Exception, SystemExit):
                    items.extend(item for item in _resolve_all(group, entry) if item.meta.id in ids)
    return tuple(sorted(items, key=lambda item: item.meta.id))


@functools.cache
def _text_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    origin = spec.origin if spec is not None else None
    return Path(origin).read_text("utf-8", "replace") if origin is not None and origin.endswith(".py") else ""


def _may_define(module: str, ids: Collection[str]) -> bool:
    with suppress(ImportError, OSError, ValueError):
        text = _text_of(module)
        return not text or any(f'"{name}"' in text for name in ids)
    return True


def sources() -> tuple[Any, ...]:
    """Return all sources (`preflight.sources.base.Source`), in the order in which they are tried."""
    return load(SOURCES).items


def areas(*groups: str) -> dict[str, str]:
    """Return the subject of each area of rules and checks, as the packs of these `groups` state it."""
    subjects: dict[str, str] = {}
    for _, pack in _usable_packs(*(groups or (RULES, CHECKS))):
        for area, title in pack.areas.items():
            subjects.setdefault(str(area), str(title))
    for file in _plugin_files:
        for area, title in file.areas:
            subjects.setdefault(area, title)
    return subjects


def symptom_tables() -> dict[str, tuple[str, ...]]:
    """Return the tables of symptoms of all packs: paths below the folder of a package, by the name of that package."""
    packs = _usable_packs(RULES, CHECKS)
    return {point.module.partition(".")[0]: tuple(map(str, pack.symptoms)) for point, pack in packs if pack.symptoms}


def chart_makers(stages: Stages = None) -> PackFunctions:
    """Return the functions that make charts of a run of these stages, and those that cannot be loaded."""
    file_entries = [(file.label, entry) for file in _plugin_files for entry in file.charts]
    return _pack_functions(lambda pack: pack.charts, file_entries, stages)


def examiners() -> PackFunctions:
    """Return the functions that examine this machine, and those that cannot be loaded."""
    return _pack_functions(lambda pack: pack.doctor)


def measurement_readers(stages: Stages = None) -> PackFunctions:
    """Return the functions that read the measurements of a run of these stages, and those that cannot be loaded."""
    return _pack_functions(lambda pack: pack.measurements, (), stages)


def property_readers() -> tuple[tuple[Callable[..., Mapping[str, str]], ...], tuple[Broken, ...]]:
    """Return the functions that read properties of a node from its facts, and those that cannot be loaded."""
    functions, broken = _pack_functions(lambda pack: pack.properties)
    return tuple(function.make for function in functions), broken


def _usable_packs(*groups: str) -> Iterator[tuple[EntryPoint, Pack]]:
    """Yield the packs of these groups. A pack that cannot be loaded is skipped here, and reported with its items."""
    for group in groups:
        for point in _entry_points(group):
            with suppress(Exception, SystemExit):
                yield point, as_pack(point.load())


def _pack_functions(
    names_in: Callable[[Pack], tuple[Any, ...]], further_entries: Iterable[tuple[str, Any]] = (), stages: Stages = None
) -> PackFunctions:
    functions: list[PackFunction] = []
    broken: list[Broken] = []
    entries: list[tuple[str, Any]] = []
    for point, pack in _usable_packs(CHECKS):
        entries.extend((_distribution_name(point), entry) for entry in _select_by_stages(pack, names_in(pack), stages))
    for plugin, entry in (*entries, *further_entries):
        where = str(getattr(entry, "__name__", entry))
        try:
            make = _resolve(entry)
            if not callable(make):
                raise TypeError(f"expected a function, not {type(make).__name__}")
        except (Exception, SystemExit) as error:
            broken.append(Broken(CHECKS, plugin, where, error_text(error)))
        else:
            functions.append(PackFunction(plugin, where, make))
    return tuple(functions), tuple(broken)


def load_named(group: str, name: str) -> Any:
    """Return the executor or reporter with this `name`. Raises KeyError with the most similar name and all names."""
    if (built_in := _built_in(group, name)) is not None:
        return built_in
    item_by_name = {item.name: item for item in load(group).items}
    if name not in item_by_name:
        similar = similar_names(name.lower(), item_by_name)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        kind = group.rpartition(".")[2].removesuffix("s")
        raise KeyError(f"unknown {kind} {name!r}; {hint}known names: {', '.join(sorted(item_by_name)) or 'none'}")
    return item_by_name[name]


def _built_in(group: str, name: str) -> Any:
    """Return the built-in item with this name, found by its module so that no other loads; None if there is none."""
    for point in _entry_points(group):
        entries = as_pack(point.load()).items if point.module.partition(".")[0] == "preflight" else ()
        for entry in entries:
            if isinstance(entry, str) and entry.partition(":")[0].rpartition(".")[2] == name:
                # Load errors are reported by the code that loads all items.
                with suppress(Exception):
                    item = _resolve(entry)
                    return item if item.name == name else None
    return None


def names_of(items: Iterable[Rule | Check]) -> set[str]:
    """Return the ids, names and areas of `items`."""
    return {name for item in items for name in (item.meta.id, item.meta.name, item.meta.area)}


def unknown_names(names: Iterable[str], items: Iterable[Rule | Check]) -> dict[str, tuple[str, ...]]:
    """Return the `names` that are not an id, name or area of `items`, each of the first ten with similar names."""
    known_names = names_of(items)
    unknown_list = [
        name for name in dict.fromkeys(names) if name.upper() not in known_names and name.lower() not in known_names
    ]
    return {name: nearest(name, known_names) if number < _MAX_HINTS else () for number, name in enumerate(unknown_list)}


def nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return up to three of the `known` ids and names that are most similar to `name`."""
    if len(name) > MAX_LENGTH:
        return ()
    from difflib import SequenceMatcher

    similarity = {candidate: SequenceMatcher(None, name.lower(), candidate.lower()).ratio() for candidate in known}
    candidates = sorted(
        (candidate for candidate in similarity if similarity[candidate] >= 0.5),
        key=lambda candidate: (-similarity[candidate], candidate),
    )
    return tuple(candidates[:3])


@functools.cache
def _installed() -> Any:
    """Return all entry points, read once, because this opens all files of installed distributions."""
    return entry_points()


def _entry_points(group: str) -> list[EntryPoint]:
    point_by_name = {(point.name, point.value): point for point in _installed().select(group=group)}
    return sorted(
        point_by_name.values(),
        key=lambda point: (point.name != "builtin", _distribution_name(point), point.name, point.value),
    )


def _select_by_stages(pack: Pack, entries: Sequence[Any], stages: Stages) -> tuple[Any, ...]:
    """Return the entries of a pack, except those that only other stages use."""
    other_modules = tuple(
        f"{module}." for module, stage in pack.stages.items() if stages is not None and stage not in stages
    )
    return tuple(
        entry
        for entry in entries
        if not isinstance(entry, str) or not f"{entry.partition(':')[0]}.".startswith(other_modules)
    )


def _check_unique(group: str, item: Any, items: Sequence[Any]) -> None:
    """Raise TypeError or ValueError for an object of another group, or with a name that is already used."""
    if group not in (RULES, CHECKS):
        if not isinstance(getattr(item, "name", None), str):
            raise TypeError(f"it has no name, but every item in {group} needs one")
        if any(item.name == other.name for other in items):
            raise ValueError(f"the name {item.name!r} is already used")
        return
    expected = Rule if group == RULES else Check
    if not isinstance(item, expected):
        raise TypeError(f"expected a {expected.__name__.lower()}, not {type(item).__name__}; use the decorator")
    for other in items:
        if item.meta.id == other.meta.id or item.meta.name == other.meta.name:
            other_text = f"{other.meta.id} {other.meta.name}"
            raise ValueError(
                f"{item.meta.id} {item.meta.name} collides with {other_text}; ids and names must be unique"
            )


def _distribution_name(point: EntryPoint) -> str:
    return _name_and_version(point.dist) if point.dist is not None else point.name


@functools.cache
def _name_and_version(distribution: Distribution) -> str:
    """Return name and version from the head of a distribution's metadata, without parsing all of it."""
    head, _, _ = (distribution.read_text("METADATA") or "").partition("\n\n")
    headers = dict(line.partition(": ")[::2] for line in head.splitlines())
    if "Name" in headers and "Version" in headers:
        return f"{headers['Name']} {headers['Version']}"
    return f"{distribution.name} {distribution.version}"


def _resolve_all(group: str, entry: Any) -> tuple[Any, ...]:
    """Return the objects of a pack entry: of `module:attribute`, or every rule or check defined in `module`."""
    if group not in (RULES, CHECKS) or not isinstance(entry, str) or ":" in entry:
        resolved = _resolve(entry)
        return resolved if isinstance(resolved, tuple) else (resolved,)
    kind = Rule if group == RULES else Check
    module = importlib.import_module(entry)
    defined = (item for item in vars(module).values() if isinstance(item, kind))
    # A module may import a rule of another module.
    return tuple(item for item in defined if getattr(item.judge, "__module__", entry) == entry)


def _resolve(entry: Any) -> Any:
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    # A pack may name a class that needs no arguments, so that a module need not create an instance at import.
    return target() if isinstance(target, type) else target


def error_text(error: BaseException) -> str:
    """Return the type and the message of an error."""
    return f"{type(error).__name__}: {error}"
