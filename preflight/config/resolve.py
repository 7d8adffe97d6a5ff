"""Determines the input of a command, and the settings of its run from file and command line."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from preflight._util.roots import resolve_paths
from preflight._util.usage_error import UsageError
from preflight.model.configuration import Configuration, SeverityChoice, Site, matches
from preflight.model.findings import Confidence
from preflight.model.progress import Progress, ignore
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule
from preflight.plugins.installed import declared_by

if TYPE_CHECKING:
    from preflight.config.document import Document
    from preflight.model.job import Job, LeftOut


#: The largest number of unknown names for which similar names are suggested.
_MAX_HINTS = 10


def relative(file: Path, root: Path) -> str:
    """Return the path for display: relative to the root if it is below or above it, otherwise unchanged."""
    path = os.path.relpath(file.resolve(), root.resolve())
    return str(file) if path.count("../") > 4 else path


def unknown_names(names: Iterable[str], site_items: Sequence[Rule | Check] = ()) -> dict[str, str]:
    """Return the `names` that are not a rule, check or area, each with a hint. Checks are loaded only if needed."""
    known_names = registry.names_of((*registry.rules(), *site_items))
    remaining = [
        name for name in dict.fromkeys(names) if name.upper() not in known_names and name.lower() not in known_names
    ]
    if remaining:
        known_names |= registry.names_of(registry.checks())
        remaining = [name for name in remaining if name.upper() not in known_names and name.lower() not in known_names]
    names_by_unknown = {name: registry.nearest(name, known_names) for name in islice(remaining, _MAX_HINTS)}
    return {
        name: f"; the nearest: {', '.join(nearest_names)}" if (nearest_names := names_by_unknown.get(name)) else ""
        for name in remaining
    }


def error_limit_reason(choice: SeverityChoice) -> str:
    """Return the reason why a rule's findings cannot be errors; empty if they can, or if the name is an area."""
    if choice.severity != "error":
        return ""
    for item in _items_with_exact_name(choice.name):
        if item.meta.confidence is not Confidence.HIGH:
            confidence = item.meta.confidence.value
            limit_text = "only findings of high confidence can be errors"
            return f"{item.meta.id} has {confidence} confidence, and {limit_text}; use warning or info"
    return ""


def _items_with_exact_name(name: str) -> Iterator[Rule | Check]:
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
    """Return the jobs in `paths`, without folder files matching `exclude`. Raises UsageError for bad paths."""
    return read_jobs(paths, root=root, exclude=exclude, given=given, progress=progress)[0]


def read_jobs(
    paths: Sequence[str | Path],
    *,
    root: str | Path | None = None,
    exclude: Sequence[str] = (),
    given: Mapping[Path, bytes] | None = None,
    candidates: Collection[str] | None = None,
    progress: Progress = ignore,
) -> tuple[tuple[Job, ...], tuple[LeftOut, ...]]:
    """Return the jobs of `jobs_in` and the skipped files; `only` are the files to consider instead of searching."""
    from preflight.sources.discovery.assemble import assemble
    from preflight.sources.discovery.readings import TreeSnapshot

    top, input_paths = resolve_paths(paths, root, given)
    snapshot = TreeSnapshot(top, exclude, given, candidates)
    jobs = assemble(top, input_paths, sources=registry.sources(), snapshot=snapshot, progress=progress)
    return jobs, snapshot.left_out


_MAX_FILES = 16


def resolve_settings(
    choices: Choices, root: Path, start: Path, top: Path, *, read_baseline: bool = True
) -> RunSettings:
    """Return the settings of a run over `root`, from files between `start` and `top`. Raises UsageError."""
    declared = _load_site(choices.site_rules)
    documents = _documents(choices, root, start, top, declared) if choices.use_file else []
    document = documents[0] if documents else None
    run_settings = (
        document.run_settings()
        if document is not None
        else RunSettings(Configuration(site_rules=declared.rules, site_checks=declared.checks))
    )
    for inner_document in documents[1:]:
        run_settings = inner_document.tighten(run_settings)
    configuration = _apply_choices(run_settings.configuration, choices)
    site_items = declared_by(configuration.site)
    for name in (*choices.ignore, *(choice.name for choice in choices.severities)):
        for unknown_name, hint in unknown_names([name], site_items).items():
            raise UsageError(f"unknown rule or check {unknown_name!r}{hint}")
    for choice in choices.severities:
        if reason := error_limit_reason(choice):
            raise UsageError(f"--severity {choice.name}={choice.severity}: {reason}")
    for name in choices.ignore:
        if name.upper() in (item.upper() for item in configuration.mandatory):
            raise UsageError(f"--ignore {name}: {configuration.file} makes it mandatory")
    baseline_file = choices.baseline or (document.baseline() if document is not None else None)
    if baseline_file is not None and read_baseline:
        from preflight.config import baseline

        display_path = str(baseline_file) if choices.baseline is not None else relative(baseline_file, root)
        configuration = replace(
            configuration, baseline=baseline.load(baseline_file).entries, baseline_file=display_path
        )
    return replace(run_settings, configuration=configuration, baseline=baseline_file)


def _apply_choices(file_configuration: Configuration, choices: Choices) -> Configuration:
    """Return the settings after the command line: `--select` replaces selections, the rest is combined."""
    exclude = choices.exclude if choices.exclude is not None else file_configuration.exclude
    return replace(
        file_configuration,
        profile=choices.profile or file_configuration.profile,
        select=choices.select or file_configuration.select,
        ignore=choices.ignore if choices.select else (*file_configuration.ignore, *choices.ignore),
        fail_on=choices.fail_on or file_configuration.fail_on,
        allow_incomplete=choices.allow_incomplete or file_configuration.allow_incomplete,
        severities=(*file_configuration.severities, *choices.severities),
        exclude=(*exclude, *choices.extend_exclude),
    )


def _documents(choices: Choices, root: Path, start: Path, top: Path, declared: Site) -> list[Document]:
    """Return the named configuration file, or those from `top` down to `start`. Raises UsageError."""
    if choices.file is not None:
        from preflight.config.document import load_named

        return [load_named(choices.file, root, declared)]
    top = top.resolve()
    folder = start.resolve()
    folders = [top]
    if top in folder.parents:
        folders = [
            *reversed([parent for parent in (folder, *folder.parents) if parent == top or top in parent.parents])
        ]
    documents: list[Document] = []
    for folder in folders:
        folder_documents: list[Document] = []
        for name in NAMES:
            if os.path.lexists(folder / name):
                from preflight.config.document import load_from_tree

                document = load_from_tree(folder / name, root, top, declared)
                if document is not None:
                    folder_documents.append(document)
        if len(folder_documents) > 1:
            # Neither file takes precedence: otherwise an added file could override the mandatory rules of the other.
            raise UsageError(
                f"{folder_documents[0].display_path} and {folder_documents[1].display_path} both configure preflight;"
                " keep one of them"
            )
        documents.extend(folder_documents)
        if len(documents) > _MAX_FILES:
            raise UsageError(
                f"more than {_MAX_FILES} configuration files apply to {documents[-1].display_path}; merge them"
            )
    return documents


def _load_site(files: Sequence[Path]) -> Site:
    if not files:
        return Site()
    from preflight.plugins.site.loader import load

    return load(files)


def items_named(name: str, site_items: Sequence[Rule | Check] = ()) -> Iterator[Rule | Check]:
    """Yield every rule and check with this id, name or area."""
    selectors = (name,)
    return (
        item
        for item in (*registry.rules(), *registry.checks(), *site_items)
        if matches(item.meta.id, item.meta.name, selectors)
    )


#: Names of configuration files; at most one of them in a folder may configure preflight.
NAMES = ("preflight.toml", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of the command line. `file` replaces the search; without `use_file` no file is used."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    profile: str | None = None
    fail_on: str | None = None
    allow_incomplete: bool = False
    severities: tuple[SeverityChoice, ...] = ()
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    baseline: Path | None = None
    site_rules: tuple[Path, ...] = ()
    file: Path | None = None
    use_file: bool = True


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run; the price is in the user's currency, an empty `history_keep` keeps all runs."""

    configuration: Configuration = field(default_factory=Configuration)
    output: str = ""
    baseline: Path | None = None
    price_per_gpu_hour: float | None = None
    history: str = ""
    history_keep: str = ""
