"""From a configuration file and the command line to the configuration of a run; where they differ, the latter wins.

Most runs have neither a file nor rules of a site, so what reads those is imported only where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from preflight import catalog
from preflight.configuration import Configuration, SeverityChoice, Site
from preflight.errors import UsageError
from preflight.judgement import Check, Rule
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence

if TYPE_CHECKING:
    from preflight.config_document import Document

#: In each folder the first of them that is there and speaks of preflight is taken.
NAMES = ("preflight.toml", "pyproject.toml")
#: For so many unknown names the nearest ones are looked up.
_MOST_HINTS = 10


@dataclass(frozen=True, slots=True)
class Choices:
    """What the command line says; None or empty where it says nothing.

    `file` is a configuration file to take instead of the one that would be found; without `use_file` there is none.
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
    """What a run goes by; the format of its report, the file of its baseline and a price, where one is said."""

    configuration: Configuration = field(default_factory=Configuration)
    output: str = ""
    baseline: Path | None = None
    price_per_gpu_hour: float | None = None


def choose(choices: Choices, root: Path, start: Path, top: Path, *, read_baseline: bool = True) -> Chosen:
    """The configuration of a run over `root`, whose file is looked for from the folder `start` upward to `top`.

    Without `read_baseline` the findings that are accepted are not read; their file may not be there yet.

    Raises:
        UsageError: the file cannot be used, with every problem at its place; or the command line names what is not.
    """
    declared = _site(choices.site_rules)
    document = _document(choices, root, start, top, declared) if choices.use_file else None
    chosen = (
        document.chosen()
        if document is not None
        else Chosen(Configuration(site_rules=declared.rules, site_checks=declared.checks))
    )
    configuration = _with_choices(chosen.configuration, choices)
    own = declared_by(configuration.site)
    for name in (*choices.ignore, *(choice.name for choice in choices.severities)):
        for missing, hint in unknown([name], own).items():
            raise UsageError(f"there is no rule or check {missing!r}{hint}")
    for choice in choices.severities:
        if why := too_sure(choice):
            raise UsageError(f"--severity {choice.name}={choice.severity}: {why}")
    for name in choices.ignore:
        if name.upper() in (one.upper() for one in configuration.mandatory):
            raise UsageError(f"--ignore {name}: {configuration.file} makes it mandatory")
    file = choices.baseline or (document.baseline() if document is not None else None)
    if file is not None and read_baseline:
        from preflight import baseline

        shown = str(file) if choices.baseline is not None else relative(file, root)
        configuration = replace(configuration, baseline=baseline.load(file).entries, baseline_file=shown)
    return replace(chosen, configuration=configuration, baseline=file)


def _with_choices(of_file: Configuration, choices: Choices) -> Configuration:
    """What the command line says over what the file says.

    `--select` sets aside the file's own `select` and `ignore`; what is ignored and how bad findings are adds up.
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


def _document(choices: Choices, root: Path, start: Path, top: Path, declared: Site) -> Document | None:
    """The configuration file that was named, or the nearest one in the folder `start` or above it, not above `top`."""
    if choices.file is not None:
        from preflight.config_document import named

        return named(choices.file, root, declared)
    top = top.resolve()
    folder = start.resolve()
    if top not in folder.parents:
        folder = top
    while True:
        for name in NAMES:
            if os.path.lexists(folder / name):
                from preflight.config_document import found

                document = found(folder / name, root, top, declared)
                if document is not None:
                    return document
        if folder == top:
            return None
        folder = folder.parent


def _site(files: Sequence[Path]) -> Site:
    if not files:
        return Site()
    from preflight.site_file import load

    return load(files)


def declared_by(site: Site) -> tuple[Rule | Check, ...]:
    """The rules and checks that a site's declarations become."""
    found: list[Rule | Check] = []
    if site.rules:
        from preflight.declared import rules_of

        found.extend(rules_of(site.rules))
    if site.checks:
        from preflight.declared_checks import checks_of

        found.extend(checks_of(site.checks))
    return tuple(found)


def relative(file: Path, root: Path) -> str:
    """The path for people: from the root where it lies in or above it, else as it is."""
    way = os.path.relpath(file.resolve(), root.resolve())
    return str(file) if way.count("../") > 4 else way


def unknown(names: Iterable[str], own: Sequence[Rule | Check] = ()) -> dict[str, str]:
    """Those of `names` that are no rule, check or area, with a hint. Checks are loaded only where need be."""
    known = catalog.names_of((*catalog.rules(), *own))
    left = [name for name in dict.fromkeys(names) if name.upper() not in known and name.lower() not in known]
    if left:
        known |= catalog.names_of(catalog.checks())
        left = [name for name in left if name.upper() not in known and name.lower() not in known]
    hints = {name: catalog.nearest(name, known) for name in islice(left, _MOST_HINTS)}
    return {name: f"; the nearest: {', '.join(near)}" if (near := hints.get(name)) else "" for name in left}


def too_sure(choice: SeverityChoice) -> str:
    """Why a rule cannot be made an error by its own id or name; empty when it can, and for whole areas."""
    if choice.severity != "error":
        return ""
    for item in _with_name(choice.name):
        if item.meta.confidence is not Confidence.HIGH:
            sure = item.meta.confidence.value
            only = "only findings of high confidence can be errors"
            return f"{item.meta.id} is of {sure} confidence, and {only}; at most warning"
    return ""


def _with_name(name: str) -> Iterator[Rule | Check]:
    items: Iterable[Rule | Check] = catalog.rules()
    if not any(name.upper() == item.meta.id or name.lower() == item.meta.name for item in items):
        items = catalog.checks() if len(name) != 3 else ()
    return (item for item in items if name.upper() == item.meta.id or name.lower() == item.meta.name)
