"""Findings as diagnostics of an editor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lsprotocol import types

from preflight._util.sanitize import clean
from preflight.engine.report import Report
from preflight.model.findings import Finding, Location, Severity
from preflight.services.language_server.folder import Folder
from preflight.services.language_server.positions import Text
from preflight.services.language_server.rule_page_files import RulePages
from preflight.services.language_server.uris import uri_of

SOURCE = "preflight"
#: Diagnostics of one file that are sent.
MAX_DIAGNOSTICS = 500
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}


@dataclass(frozen=True, slots=True)
class PlacedFinding:
    """A finding and its range in the editor.

    Args:
        job: the name of its job.
        finding: with at least one location.
        range: of the first location.
    """

    job: str
    finding: Finding
    range: types.Range


class Places:
    """Ranges of locations; each file is read once.

    Args:
        folder: the texts, as they were judged.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._texts: dict[str, Text] = {}

    def text(self, path: str) -> Text:
        """The text of a file."""
        if path not in self._texts:
            self._texts[path] = self._folder.text(path)
        return self._texts[path]

    def range(self, location: Location) -> types.Range:
        """The range of a location."""
        return self.text(location.path).range(location.line, location.column, location.end_line, location.end_column)

    def location(self, location: Location) -> types.Location:
        """A location, with the URI of its file."""
        return types.Location(uri_of(self._folder.root / location.path), self.range(location))


def placed_findings(folder: Folder, path: str, places: Places) -> list[PlacedFinding]:
    """The findings whose first location is in a file."""
    found: dict[tuple[str, str], PlacedFinding] = {}
    for judged in folder.jobs_with(path):
        for finding in judged.report.findings if judged.report is not None else ():
            if finding.locations and finding.locations[0].path == path:
                placed = PlacedFinding(judged.job.name, finding, places.range(finding.locations[0]))
                found.setdefault((finding.fingerprint, finding.message), placed)
    return list(found.values())


def diagnostics_of(folder: Folder, pages: RulePages) -> dict[str, list[types.Diagnostic]]:
    """The diagnostics of every file of the jobs that open files belong to, by path relative to the folder.

    A file without any has an empty list, so that the editor drops those it has.
    """
    places = Places(folder)
    found: dict[str, dict[str, types.Diagnostic]] = {}
    for judged in folder.jobs.values():
        report = judged.report
        if report is None:
            continue
        for path in judged.paths:
            found.setdefault(path, {})
        for path, diagnostic in _of_report(report, judged.job.files[0].path if judged.job.files else "", places, pages):
            of_path = found.setdefault(path, {})
            if len(of_path) < MAX_DIAGNOSTICS:
                of_path.setdefault(repr(diagnostic), diagnostic)
    return {path: list(of_path.values()) for path, of_path in found.items()}


def _of_report(report: Report, first: str, places: Places, pages: RulePages) -> Iterator[tuple[str, types.Diagnostic]]:
    for finding in report.findings:
        # A fault that no line shows is shown at the beginning of the job.
        location = finding.locations[0] if finding.locations else Location(first, 1, 1, 1, 1)
        if location.path:
            yield location.path, _diagnostic(finding, location, places, pages)
    seen: set[tuple[str, int, str]] = set()
    for outcome in report.coverage.unknown_outcomes:
        # Other unknown outcomes are listed by `preflight lint -v`; these make the verdict incomplete.
        for location in outcome.locations[:1] if outcome.required else ():
            key = (location.path, location.line, outcome.reason)
            if key not in seen:
                seen.add(key)
                yield (
                    location.path,
                    types.Diagnostic(
                        places.range(location),
                        f"not judged: {clean(outcome.reason, keep_newlines=True)}",
                        types.DiagnosticSeverity.Information,
                        source=SOURCE,
                    ),
                )
    for comment in report.coverage.unused_suppressions:
        span = comment.span
        said = "suppresses nothing" if comment.names else "names no rule; write `# preflight: ignore[ID] reason`"
        yield (
            span.path,
            types.Diagnostic(
                places.range(Location.at(span)),
                f"this comment {said}",
                types.DiagnosticSeverity.Hint,
                source=SOURCE,
                tags=[types.DiagnosticTag.Unnecessary],
            ),
        )


def _diagnostic(finding: Finding, location: Location, places: Places, pages: RulePages) -> types.Diagnostic:
    message = clean(finding.message, keep_newlines=True)
    if finding.remedy:
        message += f"\n{clean(finding.remedy, keep_newlines=True)}"
    page = pages.uri(finding.id)
    return types.Diagnostic(
        places.range(location),
        message,
        _SEVERITIES[finding.severity],
        finding.id,
        types.CodeDescription(page) if page else None,
        SOURCE,
        related_information=[
            types.DiagnosticRelatedInformation(places.location(other), clean(other.note or other.snippet.strip()))
            for other in finding.locations[1:]
        ]
        or None,
        data={"fingerprint": finding.fingerprint},
    )
