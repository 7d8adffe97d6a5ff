"""A configuration file as a document: read, every mistake in it found with its place, and turned into choices.

The file may be a stranger's, like the rest of the tree it lies in. It can choose among rules, say how bad they are and
accept findings; it names no code, no file to write, and no rules of its own unless the user named the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from preflight.config_file import NAMES, Chosen, declared_by, relative, too_sure, unknown
from preflight.configuration import Configuration, FileIgnores, SeverityChoice, Site, Waiver
from preflight.errors import UsageError
from preflight.ignoring import problem as pattern_problem
from preflight.ignoring import relocated
from preflight.job import Span
from preflight.job.hostname import is_host_range
from preflight.lazy.dataclasses import dataclass
from preflight.near import nearest_path
from preflight.settings import Problem, Settings, validated
from preflight.sources.base import SourceFile
from preflight.sources.tree import DirectoryTree
from preflight.toml_places import KeyPath, Places, TomlError, inside, loads

_LARGEST_BYTES = 256 * 1024
_MOST_PROBLEMS = 10


def named(file: Path, root: Path, declared: Site) -> Document:
    """The configuration in a file that the user named.

    Raises:
        UsageError: it cannot be used.
    """
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}{nearest_path(file)}") from None
    except ValueError:
        raise UsageError(f"--config {file} is not UTF-8") from None
    document = _document(text, file, root, declared, trusted=True)
    if document is None:
        raise UsageError(f"--config {file}: there is no [tool.preflight] in it")
    return document


def found(file: Path, root: Path, top: Path, declared: Site) -> Document | None:
    """The configuration in a file of the tree below `top`; None where it has nothing to say about preflight.

    Raises:
        UsageError: it cannot be used.
    """
    # The reader that keeps to regular files inside the tree.
    read = DirectoryTree(top, largest_bytes=_LARGEST_BYTES).read(os.path.relpath(file, top))
    if isinstance(read, SourceFile):
        return _document(read.text, file, root, declared)
    if file.name == NAMES[0]:
        raise UsageError(f"the configuration cannot be used: {read.message}")
    return None


def _document(text: str, file: Path, root: Path, declared: Site, *, trusted: bool = False) -> Document | None:
    table: KeyPath = ("tool", "preflight") if file.name == "pyproject.toml" else ()
    if table and "preflight" not in text:
        return None
    shown = relative(file, root)
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
    if trusted and settings.site_rules:
        from preflight import site_file

        declared = site_file.load([file.parent / said for said in settings.site_rules], taken=declared)
    document = Document(file, shown, root, settings, places, table, trusted, declared)
    problems.extend(document.problems())
    if problems:
        raise UsageError(document.sentence(problems))
    return document


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file that was read: `shown` is its path for people, `table` where in it we are spoken of."""

    file: Path
    shown: str
    root: Path
    settings: Settings
    places: Places
    table: KeyPath
    trusted: bool
    site: Site

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
            if why := too_sure(SeverityChoice(name, severity)):
                yield Problem(("severity", name), why)
        for n, name in enumerate(settings.ignore):
            if name.upper() in (one.upper() for one in settings.mandatory):
                yield Problem(("ignore", n), f"{name} is mandatory")
        if settings.price_per_gpu_hour is not None and not settings.price_per_gpu_hour >= 0:
            yield Problem(("price-per-gpu-hour",), "`price-per-gpu-hour` is expected to be 0 or more")
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
        missing = unknown((name for _, name in (*named, *waived)), declared_by(self.site))
        for path, name in (*named, *waived):
            if name in missing:
                yield Problem(path, f"there is no rule or check {name!r}{missing[name]}")
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
            site_rules=self.site.rules,
            site_checks=self.site.checks,
            file=self.shown,
        )
        return Chosen(configuration, settings.output or "", price_per_gpu_hour=settings.price_per_gpu_hour)

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
