"""The input of a command, and the configuration of its run: a configuration file merged with the command line, which
takes precedence.

Most runs have neither a file nor site rules, so their readers are imported only on demand.

The choices of the command line, and the settings that result for a run.
"""

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


#: Largest number of unknown names with suggestions.
_MAX_HINTS = 10


def relative(file: Path, root: Path) -> str:
    """Return the path for display: relative to the root if it is below or above it, otherwise unchanged."""
    path = os.path.relpath(file.resolve(), root.resolve())
    return str(file) if path.count("../") > 4 else path


def unknown(names: Iterable[str], own: Sequence[Rule | Check] = ()) -> dict[str, str]:
    """Return the `names` that are not a rule, check or area, with a hint. Checks are loaded only if needed."""
    known = registry.names_of((*registry.rules(), *own))
    left = [name for name in dict.fromkeys(names) if name.upper() not in known and name.lower() not in known]
    if left:
        known |= registry.names_of(registry.checks())
        left = [name for name in left if name.upper() not in known and name.lower() not in known]
    hints = {name: registry.nearest(name, known) for name in islice(left, _MAX_HINTS)}
    return {name: f"; the nearest: {', '.join(near)}" if (near := hints.get(name)) else "" for name in left}


def why_not_error(choice: SeverityChoice) -> str:
    """Return the reason why a rule's findings cannot be errors; empty if they can, and for whole areas."""
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
    """Return the jobs that the files in `paths` describe; `exclude` are patterns of files to skip in folders.

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
    """Return the jobs as `jobs_in` returns them, and the files of folders that were skipped.

    With `only`, folders consist of these candidates (relative to `root`) and are not walked: to read some jobs of a
    folder again.
    """
    from preflight.sources.discovery.assemble import assemble
    from preflight.sources.discovery.readings import TreeSnapshot

    top, chosen = resolve_paths(paths, root, given)
    snapshot = TreeSnapshot(top, exclude, given, only)
    jobs = assemble(top, chosen, sources=registry.sources(), snapshot=snapshot, progress=progress)
    return jobs, snapshot.left_out


_MAX_FILES = 16


def choose(choices: Choices, root: Path, start: Path, top: Path, *, read_baseline: bool = True) -> Chosen:
    """Return the configuration of a run over `root`; its file is searched for from the folder `start` upward to `top`.

    Without `read_baseline` the accepted findings are not read; their file may not exist yet.

    Raises:
        UsageError: the file cannot be used, with every problem at its location; or the command line has an unknown
            name.
    """
    declared = _site(choices.site_rules)
    documents = _documents(choices, root, start, top, declared) if choices.use_file else []
    document = documents[0] if documents else None
    chosen = (
        document.chosen()
        if document is not None
        else Chosen(Configuration(site_rules=declared.rules, site_checks=declared.checks))
    )
    for inner in documents[1:]:
        chosen = inner.tighten(chosen)
    configuration = _apply_choices(chosen.configuration, choices)
    own = declared_by(configuration.site)
    for name in (*choices.ignore, *(choice.name for choice in choices.severities)):
        for missing, hint in unknown([name], own).items():
            raise UsageError(f"unknown rule or check {missing!r}{hint}")
    for choice in choices.severities:
        if why := why_not_error(choice):
            raise UsageError(f"--severity {choice.name}={choice.severity}: {why}")
    for name in choices.ignore:
        if name.upper() in (item.upper() for item in configuration.mandatory):
            raise UsageError(f"--ignore {name}: {configuration.file} makes it mandatory")
    file = choices.baseline or (document.baseline() if document is not None else None)
    if file is not None and read_baseline:
        from preflight.config import baseline

        shown = str(file) if choices.baseline is not None else relative(file, root)
        configuration = replace(configuration, baseline=baseline.load(file).entries, baseline_file=shown)
    return replace(chosen, configuration=configuration, baseline=file)


def _apply_choices(of_file: Configuration, choices: Choices) -> Configuration:
    """Apply the command line to the settings of the file.

    `--select` replaces the file's own `select` and `ignore`; ignored items and severities are combined.
    """
    exclude = choices.exclude if choices.exclude is not None else of_file.exclude
    return replace(
        of_file,
        profile=choices.profile or of_file.profile,
        select=choices.select or of_file.select,
        ignore=choices.ignore if choices.select else (*of_file.ignore, *choices.ignore),
        fail_on=choices.fail_on or of_file.fail_on,
        allow_incomplete=choices.allow_incomplete or of_file.allow_incomplete,
        severities=(*of_file.severities, *choices.severities),
        exclude=(*exclude, *choices.extend_exclude),
    )


def _documents(choices: Choices, root: Path, start: Path, top: Path, declared: Site) -> list[Document]:
    """Return the configuration file that the user named; otherwise those from the folder `top` down to `start`,
    outermost first.

    Raises:
        UsageError: a file cannot be used, or a folder has two.
    """
    if choices.file is not None:
        from preflight.config.document import load_named

        return [load_named(choices.file, root, declared)]
    top = top.resolve()
    folder = start.resolve()
    folders = [top]
    if top in folder.parents:
        folders = [*reversed([item for item in (folder, *folder.parents) if item == top or top in item.parents])]
    documents: list[Document] = []
    for folder in folders:
        here: list[Document] = []
        for name in NAMES:
            if os.path.lexists(folder / name):
                from preflight.config.document import load_found

                document = load_found(folder / name, root, top, declared)
                if document is not None:
                    here.append(document)
        if len(here) > 1:
            # Neither file takes precedence: otherwise an added file could override the mandatory rules of the other.
            raise UsageError(
                f"{here[0].display_path} and {here[1].display_path} both configure preflight; keep one of them"
            )
        documents.extend(here)
        if len(documents) > _MAX_FILES:
            raise UsageError(
                f"more than {_MAX_FILES} configuration files lead to {documents[-1].display_path}; merge them"
            )
    return documents


def _site(files: Sequence[Path]) -> Site:
    if not files:
        return Site()
    from preflight.plugins.site.loader import load

    return load(files)


def items_called(name: str, own: Sequence[Rule | Check] = ()) -> Iterator[Rule | Check]:
    """Yield every rule and check with this id or name, or of this area."""
    wanted = (name,)
    return (
        item for item in (*registry.rules(), *registry.checks(), *own) if matches(item.meta.id, item.meta.name, wanted)
    )


#: Names of configuration files; at most one of them in a folder may configure preflight.
NAMES = ("preflight.toml", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of the command line; None or empty for options that were not given.

    `file` is a configuration file to use instead of searching for one; with `use_file` false there is none.
    """

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
class Chosen:
    """The settings of a run, and, if given, the format of its report, the file of its baseline and the price.

    `history` is the address of the database for runs, and `history_keep` how long it keeps them.
    """

    configuration: Configuration = field(default_factory=Configuration)
    output: str = ""
    baseline: Path | None = None
    price_per_gpu_hour: float | None = None
    history: str = ""
    history_keep: str = ""
