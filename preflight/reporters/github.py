"""Reports for GitHub Actions: workflow commands that annotate a run, and the summary page of a job.

GitHub keeps the first ten errors, ten warnings and ten notices of a step and silently drops other annotations; the
lines stay in the log. So the worst findings come first, and the first line gives all counts. Only workflow commands are
written, so a line of a hostile file that looks like a workflow command never starts a line of output.

GitHub accepts 1 MiB per step and drops a longer summary entirely, so what does not fit is only counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Finding, Location, Outcome, Severity, VerdictKind
from preflight.reporters.base import Style
from preflight.reporters.text.groups import compared_with, undecided, why_not_judged

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
#: Number of annotations of each kind that GitHub keeps per step.
MAX_SHOWN = 10


class GithubReporter:
    """Renders the verdict as a notice, then one command per finding."""

    name = "github"

    def render(self, report: Report, style: Style) -> bytes:
        return "".join(f"{line}\n" for line in _commands(report)).encode("utf-8", "replace")


def _commands(report: Report) -> Iterator[str]:
    # Findings are sorted worst first; an undecided check is as severe as its effect on the exit code.
    opened = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    yield _command("notice", summary_of(report), title=f"preflight {report.run.verb}: {report.verdict.value}")
    for broken in report.coverage.broken:
        message = f"{broken.where} of {broken.plugin} cannot be used: {broken.why}"
        yield _command(_level(report), message, title="preflight: a plugin is broken")
    for finding in report.findings:
        yield _finding_command(finding)
    for outcome in opened:
        yield _outcome_command(outcome, _level(report))


def summary_of(report: Report) -> str:
    """Return all counts in one line: `2 errors, 1 warning; 3 required checks could not be decided; 1 suppressed`."""
    counts = {severity: sum(f.severity is severity for f in report.findings) for severity in Severity}
    counted = ", ".join(_plural(number, severity.value) for severity, number in counts.items() if number)
    if report.verdict is VerdictKind.NOT_JUDGED:
        counted = why_not_judged(report)
    opened = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
    more = (
        undecided(opened) if opened else "",
        compared_with(report).removeprefix("; "),
        f"{len(report.suppressed)} suppressed" if report.suppressed else "",
        f"fault injected ({report.run.smoke_options.injected_fault.option_text}): not a verdict on the nodes"
        if report.run.smoke_options.injected_fault
        else "",
        f"GitHub shows {MAX_SHOWN} of each kind; the log contains all"
        if max(*counts.values(), counts[Severity.ERROR] + opened) > MAX_SHOWN
        else "",
    )
    return "; ".join((counted or "nothing found", *(part for part in more if part)))


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if what == "info" or number == 1 else f"{number} {what}s"


def _level(report: Report) -> str:
    return "warning" if report.exit_code == ExitCode.GO else "error"


def _finding_command(finding: Finding) -> str:
    on = f"\non {fold_nodes(finding.nodes)}" if finding.nodes else ""
    fix = f"\nFix: {finding.remedy}" if finding.remedy else ""
    others = "".join(
        f"\nalso {place.path}:{place.line}" + (f": {place.note}" if place.note else "")
        for place in finding.locations[1:]
    )
    place = finding.locations[0] if finding.locations else None
    title = f"{finding.id} {finding.name}"
    return _command(_COMMANDS[finding.severity], f"{finding.message}{on}{others}{fix}", title=title, place=place)


def _outcome_command(outcome: Outcome, level: str) -> str:
    title = f"could not be decided: {outcome.id} {outcome.name}"
    place = next(iter(outcome.locations), None)
    return _command(level, f"{outcome.subject}: {outcome.reason}", title=title, place=place)


def _command(name: str, message: str, *, title: str, place: Location | None = None) -> str:
    """Return one workflow command; columns are given only if it begins and ends on one line, as GitHub requires."""
    properties: dict[str, str] = {}
    if place is not None:
        properties = {"file": clean(place.path), "line": str(place.line), "endLine": str(place.end_line)}
        if place.line == place.end_line:
            properties |= {"col": str(place.column), "endColumn": str(place.end_column)}
    properties["title"] = clean(title)
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {listed}::{_data(clean(message, keep_newlines=True))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


REPORTER = GithubReporter()


#: Largest size of a table. There are two, and the rest of the page is short.
_MAX_BYTES = 400_000
_MAX_CELL_LENGTH = 2000
_SIGNS = {Severity.ERROR: "❌ error", Severity.WARNING: "⚠️ warning", Severity.INFO: "ℹ️ info"}
#: ASCII characters that Markdown or HTML may interpret.
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$^:/@=\"'])")


class GithubSummaryReporter:
    """Renders the verdict, a table of findings, and what could not be decided."""

    name = "github-summary"

    def render(self, report: Report, style: Style) -> bytes:
        return "".join(f"{line}\n" for line in _lines(report)).encode("utf-8", "replace")


def _lines(report: Report) -> Iterator[str]:
    yield f"## preflight {_text(report.run.verb)}: {_text(report.verdict.value)}"
    yield ""
    yield _text(summary_of(report))
    for broken in report.coverage.broken:
        yield ""
        yield _text(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")
    if report.findings:
        yield from _table(("", "rule", "where", "finding and remedy"), map(_finding_cells, report.findings))
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    if required:
        yield from _table(("could not be decided", "of", "why"), map(_outcome_cells, required))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    taken, left_out = 0, 0
    for row in rows:
        line = f"| {' | '.join(row)} |"
        taken += len(line.encode("utf-8", "replace")) + 1
        if taken > _MAX_BYTES:
            left_out += 1
        else:
            yield line
    if left_out:
        yield ""
        yield f"and {left_out} more that do not fit here"


def _finding_cells(finding: Finding) -> tuple[str, ...]:
    place = next((f"{location.path}:{location.line}" for location in finding.locations), "")
    where = "<br>".join(_text(location) for location in (place, fold_nodes(finding.nodes)) if location)
    fix = f"\nFix: {finding.remedy}" if finding.remedy else ""
    return (
        _SIGNS[finding.severity],
        f"{_text(finding.id)} {_text(finding.name)}",
        where or _text(finding.subject),
        _text(f"{finding.message}{fix}"),
    )


def _outcome_cells(outcome: Outcome) -> tuple[str, ...]:
    return f"{_text(outcome.id)} {_text(outcome.name)}", _text(outcome.subject), _text(outcome.reason)


def _text(text: str) -> str:
    shown = clean(text, keep_newlines=True)
    if len(shown) > _MAX_CELL_LENGTH:
        shown = f"{shown[:_MAX_CELL_LENGTH]} …"
    escaped = _MARKUP.sub(r"\\\1", shown).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "<br>".join(line.strip() for line in escaped.split("\n"))


SUMMARY = GithubSummaryReporter()
