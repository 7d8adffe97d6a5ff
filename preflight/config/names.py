"""Checks the names of rules and checks that users write in configurations and options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from preflight.model.configuration import SeverityChoice, Site
from preflight.model.findings import Confidence
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule

#: The number of unknown names for which suggestions are looked up.
_MAX_HINTS = 10


def all_items(site_rules: Sequence[Path] = ()) -> tuple[Rule | Check, ...]:
    """All rules and checks, by id, including those that site rule files declare.

    Raises:
        UsageError: such a file cannot be used.
    """
    found: list[Rule | Check] = [*registry.rules(), *registry.checks()]
    if site_rules:
        from preflight.config.names import declared_by
        from preflight.plugins.site.loader import load

        found.extend(declared_by(load(site_rules)))
    return tuple(sorted(found, key=lambda item: item.meta.id))


def declared_by(site: Site) -> tuple[Rule | Check, ...]:
    """The rules and checks that a site's declarations define."""
    found: list[Rule | Check] = []
    if site.rules:
        from preflight.plugins.site.rule_judgement import rules_of

        found.extend(rules_of(site.rules))
    if site.checks:
        from preflight.plugins.site.check_judgement import checks_of

        found.extend(checks_of(site.checks))
    return tuple(found)


def relative(file: Path, root: Path) -> str:
    """The path for people: relative to the root if it is below or above it, otherwise unchanged."""
    path = os.path.relpath(file.resolve(), root.resolve())
    return str(file) if path.count("../") > 4 else path


def unknown(names: Iterable[str], own: Sequence[Rule | Check] = ()) -> dict[str, str]:
    """The `names` that are not a rule, check or area, with a hint. Checks are loaded only if needed."""
    known = registry.names_of((*registry.rules(), *own))
    left = [name for name in dict.fromkeys(names) if name.upper() not in known and name.lower() not in known]
    if left:
        known |= registry.names_of(registry.checks())
        left = [name for name in left if name.upper() not in known and name.lower() not in known]
    hints = {name: registry.nearest(name, known) for name in islice(left, _MAX_HINTS)}
    return {name: f"; the nearest: {', '.join(near)}" if (near := hints.get(name)) else "" for name in left}


def why_not_error(choice: SeverityChoice) -> str:
    """The reason why a rule's findings cannot be errors; empty if they can, and for whole areas."""
    if choice.severity != "error":
        return ""
    for item in _suggestions(choice.name):
        if item.meta.confidence is not Confidence.HIGH:
            sure = item.meta.confidence.value
            only = "only findings of high confidence can be errors"
            return f"{item.meta.id} has {sure} confidence, and {only}; use warning or info"
    return ""


def _suggestions(name: str) -> Iterator[Rule | Check]:
    items: Iterable[Rule | Check] = registry.rules()
    if not any(name.upper() == item.meta.id or name.lower() == item.meta.name for item in items):
        items = registry.checks() if len(name) != 3 else ()
    return (item for item in items if name.upper() == item.meta.id or name.lower() == item.meta.name)
