"""Composes a configuration: the defaults list merged in order, then the overrides of the command line.

Source: hydra/_internal/defaults_list.py and hydra/core/default_element.py (hydra-core 1.3), and the page "Defaults
List" of its documentation. Hydra's own configuration (`hydra/...`) is skipped: it contains nothing about the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import spend
from preflight.model.job import Known, Strength, Value
from preflight.sources.hydra.configuration import (
    ConfigFolders,
    Leaf,
    ListSetting,
    LoadedConfig,
    Place,
    Section,
    Setting,
    is_reference,
    split_key,
    text_of,
    wrap_in_package,
)
from preflight.sources.hydra.overrides import Action, Override, Resolver, Unreadable, merge

#: Faults of defaults lists; Hydra reports these before it applies overrides of values.
OF_FILES = frozenset(
    ("missing-config", "not-chosen", "chosen-twice", "twice", "unknown-choice", "malformed-defaults", "endless")
)


@dataclass(slots=True)
class Composition:
    """A composed configuration.

    Args:
        resolver: resolves its values; `resolver.root` is the configuration.
        refusals: the faults at which Hydra stops.
        unknown: configurations that it includes but that are not in the tree.
    """

    resolver: Resolver
    refusals: list[Refusal] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def root(self) -> Section:
        """Return the configuration."""
        return self.resolver.root

    def leaf(self, key: str) -> Setting | None:
        """Return the value at a dotted key; None if there is none."""
        try:
            return self.resolver.at(tuple(split_key(key)))
        except Unreadable:
            return None

    def value(self, key: str) -> Value | None:
        """Return the resolved value at a dotted key; None if there is none, or if Hydra cannot resolve it."""
        try:
            return self.resolver.value(tuple(split_key(key)))
        except Unreadable:
            return None


def compose_config(
    folders: ConfigFolders,
    name: str,
    overrides: Sequence[Override],
    environment: Mapping[str, Value],
    place: Place | None = None,
) -> Composition:
    """Return the configuration that Hydra composes for the primary configuration of this name.

    Args:
        folders: where configurations are found.
        name: the primary configuration, relative to the folders.
        overrides: those of the command line.
        environment: variables that the program sees, as far as the files show.
        place: where the primary configuration is named; None if a default names it.
    """
    defaults = DefaultsList(folders, overrides)
    root = Section(Place(Strength.CONFIG))
    resolver = Resolver(root, environment, folders.incomplete)
    for item in defaults.compute(name, place):
        merge(root, wrap_in_package(item.config.section(), item.package), resolver)
    result = Composition(resolver, defaults.refusals, defaults.unknown)
    resolver.incomplete = folders.incomplete
    if defaults.unknown and not resolver.incomplete:
        resolver.incomplete = f"`{defaults.unknown[0]}`, which is not in the tree"
    apply_overrides(result, defaults.of_values)
    for key, place in resolver.clashes:
        message = f"`{key}` is a mapping in one place and a list in another; these cannot be merged"
        result.refusals.append(Refusal("other-kind", message, place))
    return result


def apply_overrides(composition: Composition, overrides: Sequence[Override]) -> None:
    """Change a configuration as the overrides of a command line do."""
    for override in overrides:
        spend()
        if override.action is Action.DELETE:
            _delete(composition, override)
        else:
            _update(composition, override)


def _delete(composition: Composition, override: Override) -> None:
    *above, last = split_key(override.key)
    parent = composition.resolver.at(tuple(above)) if above else composition.root
    if isinstance(parent, Section) and last in parent.members:
        del parent.members[last]
    else:
        _refuse(composition, "nothing-to-delete", f"there is no `{override.key}` to delete", override)


def _update(composition: Composition, override: Override) -> None:
    *above, last = split_key(override.key)
    at: Setting = composition.root
    path: tuple[str, ...] = ()
    adds = override.action in (Action.ADD, Action.FORCE)
    for key in above:
        path = (*path, key)
        below = _below(composition, at, key, path)
        if below is None:
            if not adds:
                _refuse(composition, "unknown-key", f"there is no `{'.'.join(path)}`", override)
                # The intended change is applied anyway.
            if not isinstance(at, Section):
                return
            below = Section(override.place, before=at.members.get(key))
            at.members[key] = below
        at = below
    if isinstance(at, ListSetting):
        if last.isdecimal() and int(last) < len(at.items):
            at.items[int(last)] = override.setting()
        else:
            _refuse(composition, "unknown-key", f"`{'.'.join(path)}` is a list without a member `{last}`", override)
        return
    if not isinstance(at, Section):
        return
    old, new = at.members.get(last), override.setting()
    if old is None and not adds:
        _refuse(composition, "unknown-key", f"there is no `{override.key}`", override)
    is_set = old is not None and not (isinstance(old, Leaf) and old.value in (Known(None), Known("???")))
    if override.action is Action.ADD and isinstance(new, Leaf) and is_set:
        _refuse(composition, "already-there", f"`{override.key}` already exists", override)
    if isinstance(old, Leaf) and is_reference(old) and isinstance(new, Section):
        old = _below(composition, at, last, (*path, last))
    if isinstance(old, Section) and isinstance(new, Section):
        merge(old, new, composition.resolver, (*path, last))
        return
    if not isinstance(old, Leaf | None) and not isinstance(new, Leaf) and type(old) is not type(new):
        composition.resolver.clashes.append((override.key, override.place))
    new.before = old
    at.members[last] = new


def _below(composition: Composition, at: Setting, key: str, path: tuple[str, ...]) -> Setting | None:
    """Return the container below a key, following references; None if there is none."""
    found: Setting | None = None
    if isinstance(at, Section):
        found = at.members.get(key)
    elif isinstance(at, ListSetting) and key.isdecimal() and int(key) < len(at.items):
        found = at.items[int(key)]
    if isinstance(found, Leaf) and is_reference(found):
        try:
            target = composition.resolver.resolved(found, path)
        except Unreadable:
            return None
        return target if isinstance(target, Section | ListSetting) else None
    return found if isinstance(found, Section | ListSetting) else None


def _refuse(composition: Composition, kind: str, message: str, override: Override) -> None:
    # Hydra stops at the first faulty override. If the files cannot be merged, it does not reach the overrides.
    followers = any(refusal.place is override.place or refusal.kind in OF_FILES for refusal in composition.refusals)
    if not composition.resolver.incomplete and not followers:
        composition.refusals.append(Refusal(kind, message, override.place))


SELF = "_self_"
#: Configurations that include each other are followed to this depth.
_MAX_DEPTH = 30
_MAX_CONFIGS = 400
_INTERPOLATION = re.compile(r"\$\{([^${}:]+)\}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fault that stops Hydra: a message, and the location."""

    kind: str
    message: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class Merged:
    """One configuration to be merged.

    Args:
        path: its name in the folders of configurations, without `.yaml`.
        package: dotted keys below which its content is placed; empty for the top level.
        config: its content.
    """

    path: str
    package: str
    config: LoadedConfig


@dataclass(slots=True)
class _Default:
    """One item of a defaults list. `names` has several items if the value is a list, and is None for a group that is
    not selected.
    """

    group: str
    names: tuple[str, ...] | None
    place: Place | None
    is_group: bool
    listed: bool = False
    package: str | None = None
    optional: bool = False
    override: bool = False
    base: str = ""
    parent_package: str = ""
    header: str | None = None

    @property
    def name(self) -> str | None:
        return self.names[0] if self.names else None

    @property
    def group_path(self) -> str:
        if self.group.startswith("/"):
            return self.group[1:]
        return "/".join(part for part in (self.base, self.group) if part)

    @property
    def path(self) -> str:
        return "/".join(part for part in (self.group_path, self.name or "") if part)

    def final_package(self, *, with_header: bool = True) -> str:
        package = self.package
        if package is None and with_header:
            package = self.header
        if package is None:
            package = self.group.removeprefix("/").replace("/", ".")
        joined = ".".join(part for part in (self.parent_package, package) if part)
        before, found, after = joined.rpartition("_global_")
        return after.removeprefix(".") if found else before + after

    @property
    def override_key(self) -> str:
        final = self.final_package(with_header=False)
        if final == self.group_path.replace("/", "."):
            return self.group_path
        return f"{self.group_path}@{final or '_global_'}"

    def placed(self, base: str, parent_package: str) -> None:
        self.base, self.parent_package = base, parent_package
        if self.package is not None and "_group_" in self.package:
            self.package = f"_global_.{self.package.replace('_group_', self.group_path.replace('/', '.'))}"


@dataclass(slots=True)
class DefaultsList:
    """Computes the list for one run; what Hydra would reject is in `refusals`.

    Args:
        folders: where configurations are found.
        overrides: those of the command line; the ones that select from a group are applied here.
    """

    folders: ConfigFolders
    overrides: Sequence[Override]
    refusals: list[Refusal] = field(default_factory=list)
    #: Overrides that do not select from a group, and so change values.
    of_values: list[Override] = field(default_factory=list)
    #: Names of configurations, or of groups to select from, that are unknown.
    unknown: list[str] = field(default_factory=list)
    _choices: dict[str, tuple[tuple[str, ...] | None, Place | None]] = field(default_factory=dict)
    _external: dict[str, Override] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _selected: dict[str, str | None] = field(default_factory=dict)
    _deleted: dict[str, str | None] = field(default_factory=dict)
    _appended: list[_Default] = field(default_factory=list)
    _merged: set[str] = field(default_factory=set)
    _count: int = 0
    _is_cut_off: bool = False

    def compute(self, name: str, place: Place | None = None) -> list[Merged]:
        """Return the configurations to merge, in order, for the primary configuration of this name; `place` is where it
        is named.
        """
        self._sort_overrides()
        head, _, tail = name.rpartition("/")
        root = _Default(head, (tail,), place, is_group=False)
        merged = list(self._expand(root, is_root=True, depth=0))
        # The groups of Hydra itself are in a list of its own.
        chosen = [(key, at) for key, (_, at) in self._choices.items() if not key.startswith("hydra/")]
        for key, at in [*chosen, *((key, None) for key in self._deleted)]:
            if key not in self._used and not self.folders.incomplete and not self.unknown:
                self._refuse("unused-choice", f"`{key}` is not in any defaults list", at)
        return merged

    def _sort_overrides(self) -> None:
        for override in self.overrides:
            if override.key.startswith("hydra.") or override.key.split("/")[0] == "hydra":
                continue
            is_group = "." not in override.key and self.folders.is_group(override.key)
            names = override.names()
            if not is_group or isinstance(override.element, dict):
                self.of_values.append(override)
            elif override.action is Action.DELETE:
                self._deleted[_key_of(override)] = names[0] if names else None
            elif override.action is Action.ADD:
                new = _Default(override.key, names, override.place, True, override.is_list, override.package)
                self._appended.append(new)
            elif names is None and override.is_unknown:
                self.unknown.append(override.key)
            elif names is None or (override.action is Action.FORCE and not override.is_list):
                message = f"`{override.key}` is a group, but the override selects nothing from it"
                self._refuse("no-choice", message, override.place)
            else:
                key = _key_of(override)
                self._choices[key] = (names, override.place)
                self._external[key] = override

    def _refuse(self, kind: str, message: str, place: Place | None) -> None:
        self.refusals.append(Refusal(kind, message, place))

    def _expand(self, item: _Default, *, is_root: bool, depth: int) -> Iterator[Merged]:
        """Yield the configurations of one item and all below it, in the order in which they are merged."""
        spend()
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_CONFIGS:
            if not self._is_cut_off:
                self._refuse("endless", f"the defaults lists include `{item.path}` recursively", item.place)
            self._is_cut_off = True
            return
        if item.name is not None and item.name != "???":
            header = self.folders.header(item.path)
            item.header = None if header is None else _absolute(header, item)
        if item.is_group and self._is_deleted(item):
            return
        if (item.is_group and not self._is_single_choice(item)) or item.name is None:
            return
        if item.name == "???":
            self._refuse("not-chosen", f"`{item.override_key}` is `???`, and nothing selects a value", item.place)
            return
        config = self.folders.load(item.path)
        if config is None:
            self._missing(item)
            return
        yield from self._children(item, config, is_root=is_root, depth=depth)

    def _is_single_choice(self, item: _Default) -> bool:
        key = item.override_key
        if key in self._selected and self._selected[key] != item.name:
            message = f"`{key}` is selected twice: `{self._selected[key]}` and `{item.name}`"
            self._refuse("chosen-twice", message, item.place)
            return False
        self._selected.setdefault(key, item.name)
        return True

    def _missing(self, item: _Default) -> None:
        if item.optional:
            return
        if self.folders.incomplete:
            self.unknown.append(item.path)
        else:
            message = f"there is no `{item.path.removesuffix('.yaml')}.yaml` in {self.folders.description}"
            self._refuse("missing-config", message, item.place)

    def _children(self, item: _Default, config: LoadedConfig, *, is_root: bool, depth: int) -> Iterator[Merged]:
        items = _read(config)
        if items is None:
            self._refuse("malformed-defaults", f"the defaults list of `{config.path}` is not a list", item.place)
            items = []
        appended = [replace(each) for each in self._appended] if is_root else []
        if (items or appended) and not any(each.name == SELF and not each.is_group for each in items):
            items.append(_Default("", (SELF,), None, is_group=False))
        items += appended
        if not items:
            if item.is_group and item.override_key in self._merged:
                self._refuse("twice", f"`{item.override_key}` occurs more than once in the defaults lists", item.place)
            if item.is_group:
                self._merged.add(item.override_key)
            yield Merged(item.path, item.final_package(), config)
            return
        for each in items:
            if each.name == SELF:
                continue
            each.placed(item.group_path, item.final_package())
            if each.override and each.override_key not in self._choices:
                self._choices[each.override_key] = (each.names, each.place)
        # Later items are expanded first, so that their choices apply to earlier ones.
        expanded: list[list[Merged]] = []
        deferred: list[tuple[int, _Default]] = []
        for each in reversed([each for each in items if not each.override]):
            if each.name == SELF and not each.is_group:
                expanded.append([Merged(item.path, item.final_package(), config)])
                continue
            if each.group.split("/")[0] == "hydra" or each.group.startswith("/hydra/"):
                continue
            self._choose(each)
            if any("${" in name for name in each.names or ()):
                deferred.append((len(expanded), each))
                expanded.append([])
                continue
            expanded.append(self._all_of(each, depth))
        for index, each in deferred:
            self._interpolate(each)
            if all("${" not in name for name in each.names or ()):
                expanded[index] = self._all_of(each, depth)
        for found in reversed(expanded):
            yield from found

    def _all_of(self, item: _Default, depth: int) -> list[Merged]:
        if not item.listed:
            return list(self._expand(item, is_root=False, depth=depth + 1))
        found: list[Merged] = []
        for name in reversed(item.names or ()):
            head, _, tail = f"{item.group}/{name}".rpartition("/")
            one = _Default(head, (tail,), item.place, False, False, item.package, item.optional)
            one.placed(item.base, item.parent_package)
            found[:0] = self._expand(one, is_root=False, depth=depth + 1)
        return found

    def _choose(self, item: _Default) -> None:
        key = item.override_key
        if not item.is_group or key not in self._choices:
            return
        item.names, place = self._choices[key]
        item.place = place or item.place
        item.listed = self._external[key].is_list if key in self._external else len(item.names or ()) > 1
        self._used.add(key)

    def _is_deleted(self, item: _Default) -> bool:
        key = item.override_key
        if key not in self._deleted or self._deleted[key] not in (None, item.name):
            return False
        self._used.add(key)
        return True

    def _interpolate(self, item: _Default) -> None:
        """Fill in the choices of other items: `${db}_${server}`."""
        names = []
        for name in item.names or ():
            filled = _INTERPOLATION.sub(lambda m: str(self._selected.get(m[1].strip()) or m[0]), name)
            if ":" in filled and "${" in filled:
                self.unknown.append(name)
            elif "${" in filled and not self.folders.incomplete:
                self._refuse("unknown-choice", f"`{filled}` does not name a choice of a defaults list", item.place)
            names.append(filled)
        item.names = tuple(names)
        if not item.is_group and item.names:
            item.group, _, tail = f"{item.group}/{item.names[0]}".lstrip("/").rpartition("/")
            item.names = (tail,)


def _key_of(override: Override) -> str:
    return override.key if override.package is None else f"{override.key}@{override.package or '_global_'}"


def _absolute(header: str, item: _Default) -> str:
    if header in ("", "_global_"):
        return "_global_"
    header = header.replace("_group_", item.group_path.replace("/", ".")).replace("_name_", item.name or "")
    return header if header.startswith("_global_.") else f"_global_.{header}"


def _read(config: LoadedConfig) -> list[_Default] | None:
    """Return the items of a configuration's defaults list; None if it is not a list."""
    if config.defaults is None:
        return []
    found = [_item(item) for item in config.defaults.items] if isinstance(config.defaults, ListSetting) else [None]
    return None if None in found else [item for item in found if item is not None]


def _item(item: Setting) -> _Default | None:
    if isinstance(item, Section):
        if len(item.members) != 1:
            return None
        key, value = next(iter(item.members.items()))
        *words, written = key.split(" ")
        group, at, package = written.partition("@")
        names, listed = _names(value)
        return _Default(
            group,
            names,
            value.place,
            is_group=True,
            listed=listed,
            package=_package(package) if at else None,
            optional="optional" in words,
            override="override" in words,
        )
    text = text_of(item)
    if text is None:
        return None
    written, at, package = text.partition("@")
    head, _, tail = written.rpartition("/")
    # `/name` is in no group but still absolute.
    group = "/" if not head and written.startswith("/") else head
    return _Default(group, (tail,), item.place, is_group=False, package=_package(package) if at else None)


def _package(text: str) -> str:
    own = text.partition(":")[0]
    return "" if own == "_here_" else own


def _names(value: Setting) -> tuple[tuple[str, ...] | None, bool]:
    if isinstance(value, ListSetting):
        return tuple(text for each in value.items if (text := text_of(each)) is not None), True
    if isinstance(value, Leaf):
        text = text_of(value)
        return ((text,) if text is not None else None), False
    return None, False
