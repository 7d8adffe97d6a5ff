"""The rules and checks that a verb judges by, and a configuration that names them: a misspelt name is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from preflight import catalog
from preflight.errors import UsageError
from preflight.recording import Configuration

if TYPE_CHECKING:
    from preflight.catalog import Stages
    from preflight.judgement import Check, Rule


def rules_for(configuration: Configuration | None) -> tuple[Rule, ...]:
    """Every rule that is installed, and those that a configuration declares."""
    declared: tuple[Rule, ...] = ()
    if configuration is not None and configuration.site_rules:
        from preflight.declared import rules_of

        declared = rules_of(configuration.site_rules)
    return tuple(sorted((*catalog.rules(), *declared), key=lambda item: item.meta.id))


def checks_for(configuration: Configuration | None, stages: Stages = None) -> tuple[Check, ...]:
    """Every check that is installed and that a run of these stages needs, and those that a configuration declares."""
    declared: tuple[Check, ...] = ()
    if configuration is not None and configuration.site_checks:
        from preflight.declared_checks import checks_of

        declared = checks_of(configuration.site_checks)
    return tuple(sorted((*catalog.checks(stages), *declared), key=lambda item: item.meta.id))


def configured(configuration: Configuration | None, of_verb: Callable[[], Sequence[Rule | Check]]) -> Configuration:
    """The configuration, when every rule and check it names exists: a misspelt one would silently judge nothing.

    `of_verb` gives those of this verb. What is ignored may belong to another, so that all can share a configuration.
    """
    wanted = configuration or Configuration()
    if not wanted.select and not wanted.ignore:
        return wanted
    items = of_verb()
    unknown = catalog.unknown_names(wanted.select, items)
    if wanted.file and len(unknown) < len(wanted.select):
        # A file that all verbs share may select what belongs to another one.
        unknown = catalog.unknown_names(unknown, (*items, *catalog.rules(), *checks_for(wanted)))
    if ignored := catalog.unknown_names(wanted.ignore, items):
        unknown |= catalog.unknown_names(ignored, (*items, *catalog.rules(), *checks_for(wanted)))
    for name, near in unknown.items():
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"there is no rule or check {name!r} here to select or ignore{hint}")
    return wanted


def plugins() -> tuple[str, ...]:
    groups = (catalog.SOURCES, catalog.RULES)
    return tuple(sorted({plugin for group in groups for plugin in catalog.load(group).plugins}))


def broken_for(verb: str, stages: Stages = None) -> tuple[catalog.Broken, ...]:
    broken = (*catalog.load(catalog.SOURCES).broken, *catalog.load(catalog.RULES).broken)
    return broken if verb == "lint" else (*broken, *catalog.load(catalog.CHECKS, stages).broken)
