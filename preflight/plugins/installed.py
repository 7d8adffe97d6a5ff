"""The rules and checks that a run can use: all installed ones, and those that its configuration declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preflight._util.usage_error import UsageError
from preflight.model.configuration import Configuration, Site
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule

if TYPE_CHECKING:
    from preflight.plugins.registry import Stages


def rules_for(configuration: Configuration | None) -> tuple[Rule, ...]:
    """Return all installed rules, and those that a configuration declares."""
    declared: tuple[Rule, ...] = ()
    if configuration is not None and configuration.site_rules:
        from preflight.plugins.site.rules import rules_of

        declared = rules_of(configuration.site_rules)
    return tuple(sorted((*registry.rules(), *declared), key=lambda item: item.meta.id))


def checks_for(configuration: Configuration | None, stages: Stages = None) -> tuple[Check, ...]:
    """Return all installed checks that a run of these stages needs, and those that a configuration declares."""
    declared: tuple[Check, ...] = ()
    if configuration is not None and configuration.site_checks:
        from preflight.plugins.site.checks import checks_of

        declared = checks_of(configuration.site_checks)
    return tuple(sorted((*registry.checks(stages), *declared), key=lambda item: item.meta.id))


def check_names(
    configuration: Configuration | None, command_items: Callable[[], Sequence[Rule | Check]]
) -> Configuration:
    """Return the configuration if its names exist: a misspelt one would select nothing. Raises UsageError.

    Ignored names may belong to another command, so that all commands can share a configuration.
    """
    checked = configuration or Configuration()
    if not checked.select and not checked.ignore:
        return checked
    items = command_items()
    unknown = registry.unknown_names(checked.select, items)
    if checked.file and len(unknown) < len(checked.select):
        # A file that all commands share may select items of another command.
        unknown = registry.unknown_names(unknown, (*items, *registry.rules(), *checks_for(checked)))
    if ignored := registry.unknown_names(checked.ignore, items):
        unknown |= registry.unknown_names(ignored, (*items, *registry.rules(), *checks_for(checked)))
    for name, nearest_names in unknown.items():
        hint = f"; the nearest: {', '.join(nearest_names)}" if nearest_names else ""
        raise UsageError(f"unknown rule or check {name!r} in select or ignore{hint}")
    return checked


def plugins() -> tuple[str, ...]:
    """Return the name and version of each distribution that provides sources or rules."""
    groups = (registry.SOURCES, registry.RULES)
    return tuple(sorted({plugin for group in groups for plugin in registry.load(group).plugins}))


def broken_for(verb: str, stages: Stages = None) -> tuple[registry.Broken, ...]:
    """Return the plugins' items for a command (and its stages) that cannot be loaded."""
    broken = (*registry.load(registry.SOURCES).broken, *registry.load(registry.RULES).broken)
    return broken if verb == "lint" else (*broken, *registry.load(registry.CHECKS, stages).broken)


def all_items(site_rules: Sequence[Path] = ()) -> tuple[Rule | Check, ...]:
    """Return all rules and checks by id, with those of site rule files. Raises UsageError for such a file."""
    items: list[Rule | Check] = [*registry.rules(), *registry.checks()]
    if site_rules:
        from preflight.plugins.site.loader import load

        items.extend(declared_by(load(site_rules)))
    return tuple(sorted(items, key=lambda item: item.meta.id))


def declared_by(site: Site) -> tuple[Rule | Check, ...]:
    """Return the rules and checks that a site's declarations define."""
    declared: list[Rule | Check] = []
    if site.rules:
        from preflight.plugins.site.rules import rules_of

        declared.extend(rules_of(site.rules))
    if site.checks:
        from preflight.plugins.site.checks import checks_of

        declared.extend(checks_of(site.checks))
    return tuple(declared)
