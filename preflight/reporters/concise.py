"""One line for each finding, for grep and for editors: nothing wrapped, nothing folded over lines, nothing left out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from preflight.outcome import Finding, Location, Outcome
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes
from preflight.reporters.grouping import counted
from preflight.reporters.palette import SEVERITIES, VERDICTS
from preflight.reporters.sheet import Sheet


def concise(report: Report, style: Style) -> str:
    """`path:line:col: error[ID] message` for each finding, `node: ...` where it has no place in a file.

    What had to be told and could not follows as `unknown[ID]`, because the verdict rests on it, too. The verdict
    comes last, behind `preflight:`.
    """
    sheet = Sheet(style)
    for finding in report.findings:
        _line(sheet, _where(finding), finding.severity.value, SEVERITIES[finding.severity], finding)
    for outcome in report.coverage.not_told:
        if outcome.required:
            place = _place(outcome.locations) or clean(outcome.subject)
            _line(sheet, place, "unknown", "bold yellow", outcome)
    said = ", ".join(_verdict(report))
    sheet.line(Text.assemble("preflight: ", (report.verdict.value.upper(), VERDICTS[report.verdict]), f" {said}"))
    return sheet.text()


def _line(sheet: Sheet, where: str, what: str, color: str, item: Finding | Outcome) -> None:
    said = item.message if isinstance(item, Finding) else item.reason
    line = Text(f"{where}: ")
    line.append(f"{what}[{item.id}]", style=color)
    line.append(f" {' '.join(clean(said).split())}")
    sheet.line(line)


def _where(finding: Finding) -> str:
    """The first place in a file, else the nodes, else what it is about."""
    return _place(finding.locations) or fold_nodes(finding.nodes) or clean(finding.subject)


def _place(locations: tuple[Location, ...]) -> str:
    return f"{clean(locations[0].path)}:{locations[0].line}:{locations[0].column}" if locations else ""


def _verdict(report: Report) -> Iterator[str]:
    yield counted(report.findings) or "nothing found"
    required = sum(outcome.required for outcome in report.coverage.not_told)
    if required:
        yield f"{required} that had to be told and could not"
    if report.exit_code in (130, 143):
        yield "interrupted"
