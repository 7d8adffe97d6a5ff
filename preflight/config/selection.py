"""Selects the rules and checks of a command, and validates the names in a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from preflight._util.usage_error import UsageError
from preflight.model.recording import Configuration
from preflight.plugins import registry

if TYPE_CHECKING:
    from preflight.plugins.authoring import Check, Rule
    from preflight.plugins.registry import Stages


def rules_for(configuration: Configuration | None) -> tuple[Rule, ...]:
    """All installed rules, and those that a configuration declares."""
    declared: tuple[Rule, ...] = ()
    if configuration is not None and configuration.site_rules:
        from preflight.plugins.site.rule_judgement import rules_of

        declared = rules_of(configuration.site_rules)
    return tuple(sorted((*registry.rules(), *declared), key=lambda item: item.meta.id))


def checks_for(configuration: Configuration | None, stages: Stages = None) -> tuple[Check, ...]:
    """All installed checks that a run of these stages needs, and those that a configuration declares."""
    declared: tuple[Check, ...] = ()
    if configuration is not None and configuration.site_checks:
        from preflight.plugins.site.check_judgement import checks_of

        declared = checks_of(configuration.site_checks)
    return tuple(sorted((*registry.checks(stages), *declared), key=lambda item: item.meta.id))


def configured(configuration: Configuration | None, of_verb: Callable[[], Sequence[Rule | Check]]) -> Configuration:
    """The configuration, after checking that every rule and check it names exists: a misspelt name would silently
    select nothing.

    `of_verb` returns those of this command. Ignored names may belong to another command, so that all commands can share
    a configuration.
    """
    wanted = configuration or Configuration()
    if not wanted.select and not wanted.ignore:
        return wanted
    items = of_verb()
    unknown = registry.unknown_names(wanted.select, items)
    if wanted.file and len(unknown) < len(wanted.select):
        # A file that all commands share may select items of another one.
        unknown = registry.unknown_names(unknown, (*items, *registry.rules(), *checks_for(wanted)))
    if ignored := registry.unknown_names(wanted.ignore, items):
        unknown |= registry.unknown_names(ignored, (*items, *registry.rules(), *checks_for(wanted)))
    for name, near in unknown.items():
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"unknown rule or check {name!r} in select or ignore{hint}")
    return wanted


def plugins() -> tuple[str, ...]:
    groups = (registry.SOURCES, registry.RULES)
    return tuple(sorted({plugin for group in groups for plugin in registry.load(group).plugins}))


def broken_for(verb: str, stages: Stages = None) -> tuple[registry.Broken, ...]:
    broken = (*registry.load(registry.SOURCES).broken, *registry.load(registry.RULES).broken)
    return broken if verb == "lint" else (*broken, *registry.load(registry.CHECKS, stages).broken)
