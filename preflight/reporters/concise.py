"""One line per finding, for grep and editors: no wrapping, no folding, nothing left out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import Report
from preflight.model.findings import Finding, Location, Outcome, VerdictKind
from preflight.reporters.base import Style
from preflight.reporters.text.groups import counted, undecided, unread_inputs, why_not_judged
from preflight.reporters.text.palette import SEVERITIES, VERDICTS, word
from preflight.reporters.text.sheet import Sheet


def concise(report: Report, style: Style) -> str:
    """Render `path:line:col: error[ID] message` for each finding, with node names if it has no location in a file.

    Undecided required checks follow as `unknown[ID]`, since they affect the verdict too. The last line is the verdict,
    after `preflight:`.
    """
    sheet = Sheet(style)
    for finding in report.findings:
        _line(sheet, _location_text(finding), finding.severity.value, SEVERITIES[finding.severity], finding)
    for outcome in report.coverage.unknown_outcomes:
        if outcome.required:
            place = _place(outcome.locations) or clean(outcome.subject)
            _line(sheet, place, "unknown", "bold yellow", outcome)
    for note in unread_inputs(report):
        line = Text(f"{clean(note.span.path)}:{note.span.line}:{note.span.column}: ")
        line.append("unknown", style="bold yellow")
        line.append(f" {' '.join(clean(note.message).split())}")
        sheet.line(line)
    counts = ", ".join(_verdict(report))
    sheet.line(Text.assemble("preflight: ", (word(report.verdict), VERDICTS[report.verdict]), f" {counts}"))
    return sheet.text()


def _line(sheet: Sheet, where: str, what: str, color: str, item: Finding | Outcome) -> None:
    message = item.message if isinstance(item, Finding) else item.reason
    line = Text(f"{where}: ")
    line.append(f"{what}[{item.id}]", style=color)
    line.append(f" {' '.join(clean(message).split())}")
    sheet.line(line)


def _location_text(finding: Finding) -> str:
    """Return the first location in a file, else the nodes, else the subject."""
    return _place(finding.locations) or fold_nodes(finding.nodes) or clean(finding.subject)


def _place(locations: tuple[Location, ...]) -> str:
    return f"{clean(locations[0].path)}:{locations[0].line}:{locations[0].column}" if locations else ""


def _verdict(report: Report) -> Iterator[str]:
    if report.verdict is VerdictKind.NOT_JUDGED:
        yield why_not_judged(report)
        return
    yield counted(report.findings) or "nothing found"
    required = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
    if required:
        yield undecided(required)
    if report.exit_code in (130, 143):
        yield "interrupted"
