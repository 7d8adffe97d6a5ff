"""Composes a configuration: the defaults list merged in order, then the overrides of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from preflight._util.budget import spend
from preflight.model.job import Known, Strength, Value
from preflight.sources.hydra.config_folders import ConfigFolders
from preflight.sources.hydra.config_tree import (
    Leaf,
    Place,
    Section,
    Setting,
    is_reference,
    split_key,
    text_of,
    wrap_in_package,
)
from preflight.sources.hydra.config_tree import Sequence as ListSetting
from preflight.sources.hydra.defaults_list import DefaultsList, Refusal
from preflight.sources.hydra.interpolation import Resolver, Unreadable, merge
from preflight.sources.hydra.override_grammar import Action
from preflight.sources.hydra.overrides import Override

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
        """The configuration."""
        return self.resolver.root

    def leaf(self, key: str) -> Setting | None:
        """The value at a dotted key; None if there is none."""
        try:
            return self.resolver.at(tuple(split_key(key)))
        except Unreadable:
            return None

    def value(self, key: str) -> Value | None:
        """The resolved value at a dotted key; None if there is none, or if Hydra cannot resolve it."""
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
    """The configuration that Hydra composes for the primary configuration of this name.

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
    if (
        override.action is Action.ADD
        and isinstance(new, Leaf)
        and old is not None
        and not (isinstance(old, Leaf) and old.value == Known(None))
        and text_of(old) != "???"
    ):
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
    """The container below a key, following references; None if there is none."""
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
