"""From a configuration file and the command line to the configuration of a run; where they differ, the latter wins.

The file may be a stranger's, like the rest of the tree it lies in. It can choose among rules, say how bad they are and
accept findings; it names no code, no file to write, and no rules of its own unless the user named the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from preflight import baseline, catalog, site_rules
from preflight.configuration import Accepted, Configuration, FileIgnores, SeverityChoice, SiteRule, Waiver
from preflight.declared import rules_of
from preflight.errors import UsageError
from preflight.ignoring import problem as pattern_problem
from preflight.ignoring import relocated
from preflight.job import Span
from preflight.job.hostname import is_host_range
from preflight.judgement import Check, Rule
from preflight.outcome import Confidence
from preflight.settings import Problem, Settings, validated
from preflight.toml_places import KeyPath, Places, TomlError, inside, loads

#: In each folder the first of them that is there and speaks of preflight is taken.
NAMES = ("preflight.toml", "pyproject.toml")
_LARGEST_BYTES = 1024 * 1024
_MOST_PROBLEMS = 10


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
    """What a run goes by; the format of its report and the file of its baseline, where one is said."""

    configuration: Configuration = field(default_factory=Configuration)
    output: str = ""
    baseline: Path | None = None


def choose(choices: Choices, root: Path, start: Path, top: Path, *, read_baseline: bool = True) -> Chosen:
    """The configuration of a run over `root`, whose file is looked for from the folder `start` upward to `top`.

    Without `read_baseline` the findings that are accepted are not read; their file may not be there yet.

    Raises:
        UsageError: the file cannot be used, with every problem at its place; or the command line names what is not.
    """
    declared = site_rules.load(choices.site_rules)
    document = None
    if choices.use_file and choices.file is not None:
        document = _named(choices.file, root, declared)
    elif choices.use_file:
        document = _found(root, start, top, declared)
    chosen = document.chosen() if document is not None else Chosen(Configuration(site_rules=declared))
    configuration = _with_choices(chosen.configuration, choices)
    own = rules_of(configuration)
    for name in (*choices.ignore, *(choice.name for choice in choices.severities)):
        _known(name, own)
    for choice in choices.severities:
        if why := _too_sure(choice):
            raise UsageError(f"--severity {choice.name}={choice.severity}: {why}")
    for name in choices.ignore:
        if name.upper() in (one.upper() for one in configuration.mandatory):
            raise UsageError(f"--ignore {name}: {configuration.file} makes it mandatory")
    file = choices.baseline or (document.baseline() if document is not None else None)
    if file is not None and read_baseline:
        shown = str(file) if choices.baseline is not None else _relative(file, root)
        entries: tuple[Accepted, ...] = baseline.load(file).entries
        configuration = replace(configuration, baseline=entries, baseline_file=shown)
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


def _named(file: Path, root: Path, declared: tuple[SiteRule, ...]) -> _Document:
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"--config {file} is not UTF-8") from None
    document = _document(text, file, root, declared, trusted=True)
    if document is None:
        raise UsageError(f"--config {file}: there is no [tool.preflight] in it")
    return document


def _found(root: Path, start: Path, top: Path, declared: tuple[SiteRule, ...]) -> _Document | None:
    """The nearest configuration, in the folder `start` or above it, not above `top`."""
    top = top.resolve()
    folder = start.resolve()
    while True:
        for name in NAMES:
            text = _text(folder / name, top)
            document = _document(text, folder / name, root, declared) if text is not None else None
            if document is not None:
                return document
        if folder == top or folder == folder.parent or top not in folder.parents:
            return None
        folder = folder.parent


def _text(file: Path, top: Path) -> str | None:
    """A regular file of the tree; None for anything else, and for what has nothing to say about preflight."""
    if not os.path.lexists(file):
        return None
    # The reader that keeps to regular files inside the tree.
    from preflight.sources.base import SourceFile
    from preflight.sources.tree import DirectoryTree

    found = DirectoryTree(top, largest_bytes=_LARGEST_BYTES).read(os.path.relpath(file, top))
    if not isinstance(found, SourceFile):
        if file.name == NAMES[0]:
            raise UsageError(f"the configuration cannot be used: {found.message}")
        return None
    return found.text


def _document(
    text: str, file: Path, root: Path, declared: tuple[SiteRule, ...], *, trusted: bool = False
) -> _Document | None:
    table: KeyPath = ("tool", "preflight") if file.name == "pyproject.toml" else ()
    if table and "preflight" not in text:
        return None
    shown = _relative(file, root)
    try:
        whole = loads(text)
    except TomlError as error:
        raise UsageError(f"{shown}:{error}") from None
    held = inside(whole, table)
    if held is None:
        return None
    places = Places(text)
    problems: list[Problem] = []
    settings = (
        validated(held) if isinstance(held, dict) else [Problem((), "`tool.preflight` is expected to be a table")]
    )
    if isinstance(settings, list):
        problems, settings = settings, Settings()
    if trusted:
        declared = site_rules.load([file.parent / said for said in settings.site_rules], taken=declared)
    document = _Document(file, shown, root, settings, places, table, trusted, declared)
    problems.extend(document.problems())
    if problems:
        raise UsageError(document.sentence(problems))
    return document


@dataclass(frozen=True, slots=True)
class _Document:
    """A configuration file that was read: `shown` is its path for people, `table` where in it we are spoken of."""

    file: Path
    shown: str
    root: Path
    settings: Settings
    places: Places
    table: KeyPath
    trusted: bool
    site_rules: tuple[SiteRule, ...]

    def sentence(self, problems: Iterable[Problem]) -> str:
        """Every problem with its place, in the order of the file."""
        placed = sorted((self.places.of((*self.table, *p.path), value=p.at_value), p.message) for p in problems)
        lines = [f"{self.shown}:{line}:{column}: {message}" for (line, column), message in placed]
        more = [f"and {len(lines) - _MOST_PROBLEMS} more"] if len(lines) > _MOST_PROBLEMS else []
        return "\n".join([*lines[:_MOST_PROBLEMS], *more])

    def problems(self) -> Iterator[Problem]:
        """What the types alone do not tell: unknown rules, patterns that are not taken, what only a user may say."""
        settings = self.settings
        yield from self._unknown_names()
        for path, pattern in (
            *(_at(one, "exclude", n) for n, one in enumerate(settings.exclude)),
            *(_at(one, "per-file-ignores", one) for one in settings.per_file_ignores),
            *(_at(p, "waive", n, "paths", m) for n, w in enumerate(settings.waive) for m, p in enumerate(w.paths)),
        ):
            if why := pattern_problem(pattern):
                yield Problem(path, why)
        for n, waive in enumerate(settings.waive):
            if not waive.reason.strip():
                yield Problem(("waive", n, "reason"), "a waiver needs a reason")
            for m, host in enumerate(waive.hosts):
                if not is_host_range(host):
                    yield Problem(("waive", n, "hosts", m), f"{host!r} is no host name and no range such as node[1-4]")
        for name, severity in settings.severity.items():
            if why := _too_sure(SeverityChoice(name, severity)):
                yield Problem(("severity", name), why)
        for n, name in enumerate(settings.ignore):
            if name.upper() in (one.upper() for one in settings.mandatory):
                yield Problem(("ignore", n), f"{name} is mandatory")
        if settings.output and ":" in settings.output:
            yield Problem(("output",), "a configuration names a format; files to write are named with --output")
        if settings.site_rules and not self.trusted:
            why = "only a configuration that is named with --config may name site rules; or give them with --site-rules"
            yield Problem(("site-rules",), why)

    def _unknown_names(self) -> Iterator[Problem]:
        settings = self.settings
        named: list[tuple[KeyPath, str]] = []
        for key, names in (("select", settings.select), ("ignore", settings.ignore), ("mandatory", settings.mandatory)):
            named.extend(((key, n), name) for n, name in enumerate(names))
        named.extend((("severity", name), name) for name in settings.severity)
        for pattern, names in settings.per_file_ignores.items():
            named.extend((("per-file-ignores", pattern, n), name) for n, name in enumerate(names))
        waived = [(("waive", n, "rule"), waive.rule) for n, waive in enumerate(settings.waive)]
        unknown = _unknown([name for _, name in (*named, *waived)], rules_of(Configuration(site_rules=self.site_rules)))
        for path, name in (*named, *waived):
            if name in unknown:
                yield Problem(path, f"there is no rule or check {name!r}{unknown[name]}")
            elif path[0] == "waive" and len(name) == 3:
                yield Problem(path, f"a waiver names one rule or check, and {name!r} is a whole area")

    def chosen(self) -> Chosen:
        """What the file says, before the command line is heard."""
        settings = self.settings
        configuration = Configuration(
            profile=settings.profile or "default",
            select=tuple(settings.select),
            ignore=tuple(settings.ignore),
            fail_on=settings.fail_on or "error",
            allow_incomplete=bool(settings.allow_incomplete),
            severities=tuple(SeverityChoice(name, severity) for name, severity in settings.severity.items()),
            mandatory=tuple(settings.mandatory),
            exclude=self._from_root(settings.exclude),
            file_ignores=tuple(
                FileIgnores(pattern, tuple(names))
                for said, names in settings.per_file_ignores.items()
                for pattern in self._from_root([said])
            ),
            waivers=tuple(filter(None, map(self._waiver, range(len(settings.waive))))),
            site_rules=self.site_rules,
            file=self.shown,
        )
        return Chosen(configuration, settings.output or "")

    def _waiver(self, number: int) -> Waiver | None:
        said = self.settings.waive[number]
        paths = self._from_root(said.paths)
        if said.paths and not paths:
            # It speaks of files outside the root alone.
            return None
        line, column = self.places.of((*self.table, "waive", number))
        snippet = self.places.text.split("\n")[line - 1].rstrip()
        return Waiver(
            said.rule,
            said.reason.strip(),
            paths,
            tuple(said.hosts),
            said.owner or "",
            said.expires.isoformat() if said.expires else "",
            Span(self.shown, line, column, line, len(snippet) + 1, snippet),
        )

    def _from_root(self, said: Iterable[str]) -> tuple[str, ...]:
        """Patterns, which are relative to the file's folder, as they are relative to the root."""
        return relocated(said, self.file.parent.resolve(), self.root.resolve())

    def baseline(self) -> Path | None:
        """The baseline that the file names, if any; one that was found in the tree names none outside its folder."""
        said = self.settings.baseline
        if said is None:
            return None
        path = self.file.parent / said
        if not self.trusted and self.file.parent.resolve() not in path.resolve().parents:
            raise UsageError(self.sentence([Problem(("baseline",), f"{said} lies outside the folder of this file")]))
        return path


def _at(value: str, *path: str | int) -> tuple[KeyPath, str]:
    return path, value


def _relative(file: Path, root: Path) -> str:
    """The path for people: from the root where it lies in or above it, else as it is."""
    way = os.path.relpath(file.resolve(), root.resolve())
    return str(file) if way.count("../") > 4 else way


def _known(name: str, own: Sequence[Rule]) -> None:
    """Raises UsageError, with the nearest names, where there is no such rule, check or area."""
    for unknown, hint in _unknown([name], own).items():
        raise UsageError(f"there is no rule or check {unknown!r}{hint}")


def _unknown(names: Sequence[str], own: Sequence[Rule] = ()) -> dict[str, str]:
    """Those of `names` that are no rule, check or area, with a hint. Checks are loaded only where need be."""
    left = catalog.unknown_names(names, (*catalog.rules(), *own))
    if left:
        left = catalog.unknown_names(left, (*catalog.rules(), *own, *catalog.checks()))
    return {name: f"; the nearest: {', '.join(near)}" if near else "" for name, near in left.items()}


def _too_sure(choice: SeverityChoice) -> str:
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
