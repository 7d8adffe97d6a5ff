"""Reads a configuration file, reports every mistake with its location, and defines the schema of its keys.

The file may be untrusted, like the rest of its tree. It can select rules, set their severity and accept findings. It
cannot name an output file, and it can name site rules or a database only if the user named the file.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from preflight._util import regular_file
from preflight._util.hostnames import is_host_range, max_host_count
from preflight._util.redaction import scrub
from preflight._util.sequences import join_some, value_at
from preflight._util.toml import KeyPath, TomlError, parse
from preflight._util.usage_error import UsageError, nearest_path
from preflight._util.validation import HYPHENATED, Problem, describe_schema, kind_of, problem_of, type_adapter
from preflight.config.resolve import NAMES, RunSettings, error_limit_reason, items_named, relative, unknown_names
from preflight.model.configuration import Configuration, FileIgnores, SeverityChoice, Site, Waiver, severity_chosen
from preflight.model.findings import PROFILES, Confidence, Severity
from preflight.model.job import NoteKind, Span
from preflight.plugins.installed import declared_by
from preflight.sources.base import SourceFile
from preflight.sources.discovery.walk import problem as pattern_problem
from preflight.sources.discovery.walk import relocate
from preflight.sources.formats.lenient_toml import Positions
from preflight.sources.formats.tree import DirectoryTree

_MAX_BYTES = 1 << 20
#: The largest number of entries of a key: more entries would make every finding expensive to judge.
_MAX_ENTRIES = 2000
#: The largest number of nodes in all waivers together.
_MAX_HOSTS = 100_000
_MAX_PROBLEMS = 10


def load_named(file: Path, root: Path, declared: Site) -> Document:
    """Return the configuration in a file that the user named. Raises UsageError."""
    try:
        text = regular_file.read_text(file, _MAX_BYTES, encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}{nearest_path(file)}") from None
    except ValueError:
        raise UsageError(f"--config {file} is not UTF-8") from None
    document = _document(text, file, root, declared, trusted=True)
    if document is None:
        raise UsageError(f"--config {file} has no [tool.preflight] table")
    return document


def load_from_tree(file: Path, root: Path, top: Path, declared: Site) -> Document | None:
    """Return the configuration in a file below `top`; None if it does not configure preflight. Raises UsageError."""
    # This reader accepts only regular files inside the tree.
    tree_file = DirectoryTree(top, max_file_bytes=_MAX_BYTES).read(os.path.relpath(file, top))
    if isinstance(tree_file, SourceFile):
        return _document(tree_file.text, file, root, declared)
    if file.name == NAMES[0] or tree_file.kind is not NoteKind.MALFORMED:
        # An attacker who can enlarge a pyproject.toml must not be able to disable the configuration that way.
        raise UsageError(f"the configuration cannot be used: {tree_file.message}")
    return None


def _document(text: str, file: Path, root: Path, declared: Site, *, trusted: bool = False) -> Document | None:
    table_path: KeyPath = ("tool", "preflight") if file.name == "pyproject.toml" else ()
    if table_path and "preflight" not in text:
        return None
    display_path = relative(file, root)
    try:
        document_values = parse(text)
    except TomlError as error:
        raise UsageError(f"{display_path}:{error}") from None
    table_values = value_at(document_values, *table_path)
    if table_values is None:
        return None
    positions = Positions(text)
    problems: list[Problem] = []
    settings = (
        validate_settings(table_values)
        if isinstance(table_values, dict)
        else [Problem((), "`tool.preflight` must be a table")]
    )
    if isinstance(settings, list):
        problems, settings = settings, Settings()
    if trusted and settings.site_rules:
        from preflight.plugins.site import loader

        declared = loader.load([file.parent / name for name in settings.site_rules], taken=declared)
    document = Document(file, display_path, root, settings, positions, table_path, trusted, declared)
    problems.extend(document.problems())
    if problems:
        raise UsageError(document.problems_text(problems))
    return document


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed configuration file.

    `root` is the folder to which patterns are converted; `table` is the path of preflight's table in the file;
    `trusted`: the user named the file.
    """

    file: Path
    display_path: str
    root: Path
    settings: Settings
    positions: Positions
    table: KeyPath
    trusted: bool
    site: Site

    def problems_text(self, problems: Iterable[Problem]) -> str:
        """Return every problem with its location, in the order of the file."""
        located_messages = sorted(
            (self.positions.of((*self.table, *p.path), value=p.at_value), p.message) for p in problems
        )
        lines = [f"{self.display_path}:{line}:{column}: {message}" for (line, column), message in located_messages]
        return join_some(lines, _MAX_PROBLEMS, "\n")

    def problems(self) -> Iterator[Problem]:
        """Yield problems that types cannot express: unknown rules, bad patterns, settings for trusted files only."""
        settings = self.settings
        if too_many := list(self._exceeded_limits()):
            yield from too_many
            return
        yield from self._unknown_names()
        for path, pattern in (
            *(_path_and_value(value, "exclude", n) for n, value in enumerate(settings.exclude)),
            *(_path_and_value(value, "per-file-ignores", value) for value in settings.per_file_ignores),
            *(
                _path_and_value(p, "waive", n, "paths", m)
                for n, w in enumerate(settings.waive)
                for m, p in enumerate(w.paths)
            ),
        ):
            if reason := pattern_problem(pattern):
                yield Problem(path, reason)
        for n, waive in enumerate(settings.waive):
            if not waive.reason.strip():
                yield Problem(("waive", n, "reason"), "a waiver needs a reason")
            for m, host in enumerate(waive.hosts):
                if not is_host_range(host):
                    yield Problem(
                        ("waive", n, "hosts", m), f"{host!r} is neither a host name nor a range such as node[1-4]"
                    )
        for name, severity in settings.severity.items():
            if reason := error_limit_reason(SeverityChoice(name, severity)):
                yield Problem(("severity", name), reason)
        for n, name in enumerate(settings.ignore):
            if name.upper() in (value.upper() for value in settings.mandatory):
                yield Problem(("ignore", n), f"{name} is mandatory")
        if settings.price_per_gpu_hour is not None and not settings.price_per_gpu_hour >= 0:
            yield Problem(("price-per-gpu-hour",), "`price-per-gpu-hour` must be 0 or more")
        if settings.output and ":" in settings.output:
            yield Problem(("output",), "a configuration can set only the format; set the output file with --output")
        if settings.site_rules and not self.trusted:
            reason = "only a configuration passed with --config may name site rules; use --config or --site-rules"
            yield Problem(("site-rules",), reason)
        if settings.history and not self.trusted:
            reason = "only a configuration passed with --config may name a database; use --config or --history"
            yield Problem(("history",), reason)

    def _exceeded_limits(self) -> Iterator[Problem]:
        """Yield violations of the limits that keep the evaluation fast."""
        settings = self.settings
        for key, count in (
            ("select", len(settings.select)),
            ("ignore", len(settings.ignore)),
            ("mandatory", len(settings.mandatory)),
            ("severity", len(settings.severity)),
            ("exclude", len(settings.exclude)),
            ("per-file-ignores", len(settings.per_file_ignores) + sum(map(len, settings.per_file_ignores.values()))),
            ("waive", len(settings.waive) + sum(len(value.paths) + len(value.hosts) for value in settings.waive)),
        ):
            if count > _MAX_ENTRIES:
                yield Problem((key,), f"`{key}` has {count} entries, but the limit is {_MAX_ENTRIES}")
                return
        hosts = sum(max_host_count(host) for value in settings.waive for host in value.hosts)
        if hosts > _MAX_HOSTS:
            yield Problem(("waive",), f"the `hosts` of all waivers are {hosts} nodes, but the limit is {_MAX_HOSTS}")

    def _unknown_names(self) -> Iterator[Problem]:
        settings = self.settings
        names_at: list[tuple[KeyPath, str]] = []
        for key, names in (("select", settings.select), ("ignore", settings.ignore), ("mandatory", settings.mandatory)):
            names_at.extend(((key, n), name) for n, name in enumerate(names))
        names_at.extend((("severity", name), name) for name in settings.severity)
        for pattern, names in settings.per_file_ignores.items():
            names_at.extend((("per-file-ignores", pattern, n), name) for n, name in enumerate(names))
        waived_rules = [(("waive", n, "rule"), waive.rule) for n, waive in enumerate(settings.waive)]
        hint_by_name = unknown_names((name for _, name in (*names_at, *waived_rules)), declared_by(self.site))
        for path, name in (*names_at, *waived_rules):
            if name in hint_by_name:
                yield Problem(path, f"unknown rule or check {name!r}{hint_by_name[name]}")
            elif path[0] == "waive" and len(name) == 3:
                yield Problem(path, f"a waiver must name one rule or check, but {name!r} is a whole area")

    def run_settings(self) -> RunSettings:
        """Return the settings of the file, before the command line is applied."""
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
                for text, names in settings.per_file_ignores.items()
                for pattern in self._from_root([text])
            ),
            waivers=tuple(filter(None, map(self._waiver, range(len(settings.waive))))),
            site_rules=self.site.rules,
            site_checks=self.site.checks,
            file=self.display_path,
        )
        return RunSettings(
            configuration,
            settings.output or "",
            price_per_gpu_hour=settings.price_per_gpu_hour,
            history=settings.history or "",
            history_keep=settings.history_keep or "",
        )

    def tighten(self, outer: RunSettings) -> RunSettings:
        """Return the settings of the outer files after this file makes them stricter. Settings that would relax them
        are ignored and reported.

        Write access to a subfolder of a repository must not allow overriding its mandatory settings.
        """
        settings, top_configuration = self.settings, outer.configuration
        raised_severities, is_lowered = self._raised_severities(top_configuration)
        profile = max(top_configuration.profile, settings.profile or top_configuration.profile, key=PROFILES.index)
        fail_on = min(
            top_configuration.fail_on,
            settings.fail_on or top_configuration.fail_on,
            key=lambda value: Severity(value).rank,
        )
        is_less_strict = {
            "select": settings.select and not top_configuration.select,
            "ignore": settings.ignore,
            "profile": settings.profile and settings.profile != profile,
            "severity": is_lowered,
            "fail-on": settings.fail_on and settings.fail_on != fail_on,
            "allow-incomplete": settings.allow_incomplete and not top_configuration.allow_incomplete,
            "exclude": settings.exclude,
            "per-file-ignores": settings.per_file_ignores,
            "baseline": settings.baseline,
            "waive": settings.waive,
        }
        ignored_keys = [f"`{key}`" for key, is_set in is_less_strict.items() if is_set]
        message = (
            f"{self.display_path}: {', '.join(ignored_keys)} ignored, because {top_configuration.file} in a folder"
            " above takes precedence; a configuration in a subfolder can only be stricter"
        )
        configuration = replace(
            top_configuration,
            profile=profile,
            select=(*top_configuration.select, *settings.select) if top_configuration.select else (),
            fail_on=fail_on,
            allow_incomplete=top_configuration.allow_incomplete and settings.allow_incomplete is not False,
            severities=(*top_configuration.severities, *raised_severities),
            mandatory=tuple(dict.fromkeys((*top_configuration.mandatory, *settings.mandatory))),
            set_aside=(*top_configuration.set_aside, *([message] if ignored_keys else [])),
        )
        price = settings.price_per_gpu_hour if settings.price_per_gpu_hour is not None else outer.price_per_gpu_hour
        return replace(
            outer, configuration=configuration, output=settings.output or outer.output, price_per_gpu_hour=price
        )

    def _raised_severities(self, outer: Configuration) -> tuple[list[SeverityChoice], bool]:
        """Return the severities that this file raises, by rule, and whether the file would lower any severity."""
        raised_severities: list[SeverityChoice] = []
        is_lowered = False
        for name, severity in self.settings.severity.items():
            for item in items_named(name, declared_by(outer.site)):
                meta = item.meta
                current_severity = (
                    severity_chosen(meta.id, meta.name, (*outer.severities, *raised_severities)) or meta.severity
                )
                is_certain = meta.confidence is Confidence.HIGH
                wanted_severity = Severity(severity) if is_certain or severity != "error" else Severity.WARNING
                if wanted_severity.rank > current_severity.rank:
                    raised_severities.append(SeverityChoice(meta.id, wanted_severity.value))
                is_lowered = is_lowered or wanted_severity.rank < current_severity.rank
        return raised_severities, is_lowered

    def _waiver(self, number: int) -> Waiver | None:
        waive_row = self.settings.waive[number]
        paths = self._from_root(waive_row.paths)
        if waive_row.paths and not paths:
            # All patterns of the waiver match only files outside the root.
            return None
        line, column = self.positions.of((*self.table, "waive", number))
        snippet = scrub(self.positions.text.split("\n")[line - 1].rstrip())
        return Waiver(
            waive_row.rule,
            waive_row.reason.strip(),
            paths,
            tuple(waive_row.hosts),
            waive_row.owner or "",
            waive_row.expires.isoformat() if waive_row.expires else "",
            Span(self.display_path, line, column, line, len(snippet) + 1, snippet),
        )

    def _from_root(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """Return patterns relative to the root for patterns relative to the folder of this file."""
        return relocate(patterns, self.file.parent.resolve(), self.root.resolve())

    def baseline(self) -> Path | None:
        """Return the path of the baseline, if any. Raises UsageError if a file of the tree names one elsewhere."""
        name = self.settings.baseline
        if name is None:
            return None
        path = self.file.parent / name
        if not self.trusted and self.file.parent.resolve() not in path.resolve().parents:
            raise UsageError(self.problems_text([Problem(("baseline",), f"{name} is outside the folder of this file")]))
        return path


def _path_and_value(value: str, *path: str | int) -> tuple[KeyPath, str]:
    return path, value


#: The largest number of reported mistakes of a document.
_MAX_CHECKED_PROBLEMS = 100

SeverityName = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Waive:
    """A rule or check whose findings this site accepts for a reason."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    rule: Annotated[str, "Id or name of the rule or check."]
    reason: Annotated[str, "Why it is accepted; shown in every report."]
    paths: Annotated[list[str], "Patterns, as in .gitignore, of the files it applies to. Default: all files."] = field(
        default_factory=list
    )
    hosts: Annotated[list[str], "Nodes it applies to, by name or range (node[1-4]). Default: all nodes."] = field(
        default_factory=list
    )
    owner: Annotated[str | None, "Who is responsible for it."] = None
    expires: Annotated[datetime.date | None, "The last day on which it applies: 2026-12-31."] = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of preflight.toml, and of [tool.preflight] in pyproject.toml."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    select: Annotated[list[str], "Run only these rules and checks, by id, name or area."] = field(default_factory=list)
    ignore: Annotated[list[str], "Skip these rules and checks, by id, name or area."] = field(default_factory=list)
    profile: Annotated[Literal["gate", "default", "pedantic"] | None, "How strict."] = None
    severity: Annotated[
        dict[str, SeverityName],
        "Severity of findings, by id, name or area. Only findings of high confidence can be errors.",
    ] = field(default_factory=dict)
    fail_on: Annotated[SeverityName | None, "The lowest severity that makes the verdict no-go."] = None
    allow_incomplete: Annotated[bool | None, "Exit 0 instead of 3 if a required check could not be decided."] = None
    exclude: Annotated[list[str], "Patterns, as in .gitignore, of files that are skipped in folders."] = field(
        default_factory=list
    )
    per_file_ignores: Annotated[dict[str, list[str]], "Rules that are ignored in files, by pattern."] = field(
        default_factory=dict
    )
    mandatory: Annotated[
        list[str], "Rules and checks that cannot be ignored, and whose findings cannot be suppressed."
    ] = field(default_factory=list)
    baseline: Annotated[str | None, "File of accepted findings, relative to this one."] = None
    site_rules: Annotated[
        list[str], "Files of site rules, relative to this one; only in a configuration passed with --config."
    ] = field(default_factory=list)
    output: Annotated[str | None, "Format of the report on standard output."] = None
    price_per_gpu_hour: Annotated[float | None, "Price of one GPU-hour, to show the cost that a no-go avoided."] = None
    history: Annotated[
        str | None,
        "Database in which runs are stored: sqlite:///FILE or postgresql://...; only in a configuration passed with "
        "--config.",
    ] = None
    history_keep: Annotated[
        str | None, "How long the database keeps runs: 180d, or the newest 500runs. Default: keep all."
    ] = None
    waive: Annotated[list[Waive], "Rules and checks that this site accepts, each with a reason."] = field(
        default_factory=list
    )


def validate_settings(document: Mapping[str, Any]) -> Settings | list[Problem]:
    """Return the settings of a document, or its errors."""
    from pydantic import ValidationError

    try:
        settings = type_adapter(Settings).validate_python(document)
    except ValidationError as error:
        return [
            problem_of(problem, Settings, document)
            for problem in error.errors(include_url=False, include_context=True)[:_MAX_CHECKED_PROBLEMS]
        ]
    assert isinstance(settings, Settings)
    # Values that pydantic would also accept as true or false: "yes", 1.
    value = document.get("allow-incomplete", False)
    if not isinstance(value, bool):
        return [Problem(("allow-incomplete",), f"`allow-incomplete` must be true or false, not {kind_of(value)}")]
    return settings


def schema() -> dict[str, Any]:
    return describe_schema(type_adapter(Settings), "preflight configuration", Settings, Waive)
