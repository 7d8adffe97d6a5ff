"""Targets: whole folders of jobs, linted as a pull request's tree is."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import preflight.sources
import preflight_rules
from preflight import api
from preflight._util.usage_error import UsageError
from preflight.config.resolve import Choices
from preflight.engine.report import Report, to_json
from preflight.model.findings import VerdictKind
from preflight.model.job import UNSEEN
from preflight.plugins import registry
from preflight.sources.discovery.walk import walk
from tests.fuzz import folder, mutation, seeds, words
from tests.fuzz.limits import MIB, Limits
from tests.fuzz.target import Fault, Target, sometimes

_CODES = (0, 1, 3, 4)
_BUG = "which is a bug"


def targets() -> Iterator[Target]:
    """Folders with and without a configuration."""
    yield Target("lint", _lint, seeds.jobs, _words, mutation.files, 48 * 1024, Limits(6.0, 256 * MIB), loaded)


def loaded() -> None:
    """Import every rule and reader, so that the first input does not pay for it."""
    for package in (preflight.sources, preflight_rules):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    registry.checks()


def _words() -> tuple[str, ...]:
    return (*words.options(), *words.quantities())


def _lint(data: bytes) -> None:
    files = folder.unpacked(data)
    with folder.temporary_folder(files) as root:
        report = linted(root)
        if report is None:
            return
        well_judged(report)
        all_read(report, root, files)
        api.fixes(report, [root], root=root, unsafe=True)
        if sometimes(data):
            to_json(report)
            again = linted(root)
            if again is None or _timeless(report) != _timeless(again):
                raise Fault("a folder linted twice gives two reports")


def linted(root: Path) -> Report | None:
    """The report on a folder, by its own configuration; None where that cannot be used, which ends with exit code 2."""
    try:
        chosen = api.configure(Choices(), [root], root=root)
    except UsageError as error:
        place_named(error)
        return None
    return api.lint([root], root=root, configuration=chosen.configuration)


def place_named(error: UsageError) -> None:
    """A configuration error names its file, and contains no control characters."""
    said = str(error)
    if not said.strip():
        raise Fault("an error without words")


def well_judged(report: Report, codes: tuple[int, ...] = _CODES) -> None:
    """The report contains no bug of preflight."""
    if report.exit_code not in codes:
        raise Fault("an exit code that is not among those of the verb", str(report.exit_code))
    if report.coverage.broken:
        raise Fault("a part of preflight is broken", repr(report.coverage.broken[0]))
    for outcome in report.outcomes:
        if _BUG in outcome.reason:
            where = re.findall(r'File "[^"]*?/((?:preflight|checks|rules)/[^"]+)", line \d+, in (\S+)', outcome.reason)
            raise Fault(f"{outcome.id} crashed in {':'.join(where[-1]) if where else '?'}", outcome.reason[-600:])


def all_read(report: Report, root: Path, files: dict[str, bytes]) -> None:
    """The verdict is not GO if a selected file of the folder was not read completely."""
    if report.verdict is not VerdictKind.GO:
        return
    selected = walk(root, "").files
    for path in selected:
        if b"\0" in files.get(path, b"") and any(path in job.name for job in report.jobs):
            raise Fault("GO although a selected file holds a NUL byte", path)
    for job in report.jobs:
        for note in job.notes:
            if note.kind in UNSEEN and note.span.path in selected and note.required:
                raise Fault("GO although a selected file was not read", f"{note.span.path}: {note.message}")


def _timeless(report: Report) -> Report:
    return replace(report, run=replace(report.run, created=""))
