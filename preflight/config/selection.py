"""What a command works on: the rules and checks that it names or selects, and the jobs in its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from preflight._util.usage_error import UsageError
from preflight.model.configuration import SeverityChoice, Site
from preflight.model.findings import Confidence
from preflight.model.progress import Progress, ignore
from preflight.model.recording import Configuration
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule
from preflight.sources.discovery.walk import resolve_paths

if TYPE_CHECKING:
    from preflight.model.job import Job, LeftOut
    from preflight.plugins.authoring import Check, Rule
    from preflight.plugins.registry import Stages


def rules_for(configuration: Configuration | None) -> tuple[Rule, ...]:
    """All installed rules, and those that a configuration declares."""
    declared: tuple[Rule, ...] = ()
    if configuration is not None and configuration.site_rules:
        from preflight.plugins.site.rules import rules_of

        declared = rules_of(configuration.site_rules)
    return tuple(sorted((*registry.rules(), *declared), key=lambda item: item.meta.id))


def checks_for(configuration: Configuration | None, stages: Stages = None) -> tuple[Check, ...]:
    """All installed checks that a run of these stages needs, and those that a configuration declares."""
    declared: tuple[Check, ...] = ()
    if configuration is not None and configuration.site_checks:
        from preflight.plugins.site.checks import checks_of

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


#: The number of unknown names for which suggestions are looked up.
_MAX_HINTS = 10


def all_items(site_rules: Sequence[Path] = ()) -> tuple[Rule | Check, ...]:
    """All rules and checks, by id, including those that site rule files declare.

    Raises:
        UsageError: such a file cannot be used.
    """
    found: list[Rule | Check] = [*registry.rules(), *registry.checks()]
    if site_rules:
        from preflight.plugins.site.loader import load

        found.extend(declared_by(load(site_rules)))
    return tuple(sorted(found, key=lambda item: item.meta.id))


def declared_by(site: Site) -> tuple[Rule | Check, ...]:
    """The rules and checks that a site's declarations define."""
    found: list[Rule | Check] = []
    if site.rules:
        from preflight.plugins.site.rules import rules_of

        found.extend(rules_of(site.rules))
    if site.checks:
        from preflight.plugins.site.checks import checks_of

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


def jobs_in(
    paths: Sequence[str | Path],
    *,
    root: str | Path | None = None,
    exclude: Sequence[str] = (),
    given: Mapping[Path, bytes] | None = None,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """The jobs that the files in `paths` describe; `exclude` are patterns of files to skip in folders.

    Raises:
        UsageError: a path does not exist, or is outside `root`; a pattern of `exclude` is invalid.
    """
    return read_jobs(paths, root=root, exclude=exclude, given=given, progress=progress)[0]


def read_jobs(
    paths: Sequence[str | Path],
    *,
    root: str | Path | None = None,
    exclude: Sequence[str] = (),
    given: Mapping[Path, bytes] | None = None,
    only: Collection[str] | None = None,
    progress: Progress = ignore,
) -> tuple[tuple[Job, ...], tuple[LeftOut, ...]]:
    """The jobs as `jobs_in` returns them, and the files of folders that were skipped.

    With `only`, folders consist of these candidates (relative to `root`) and are not walked: to read some jobs of a
    folder again.
    """
    from preflight.sources.discovery.assemble import assemble
    from preflight.sources.discovery.snapshot import TreeSnapshot

    top, chosen = resolve_paths(paths, root, given)
    snapshot = TreeSnapshot(top, exclude, given, only)
    jobs = assemble(top, chosen, sources=registry.sources(), snapshot=snapshot, progress=progress)
    return jobs, snapshot.left_out
