"""Workflow commands of GitHub Actions: findings as annotations of a run and of a pull request's diff.

GitHub keeps the first ten errors, ten warnings and ten notices of a step and silently drops other annotations; the
lines stay in the log. So the worst come first, and the first line gives all counts. Only workflow commands are
written, so a line of a hostile file that looks like one never starts a line of output.
"""

from __future__ import annotations

from collections.abc import Iterator

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
        """Render the commands, one per line; `style` is ignored."""
        return "".join(f"{line}\n" for line in _commands(report)).encode("utf-8", "replace")


def _commands(report: Report) -> Iterator[str]:
    # Findings are sorted worst first; an undecided check is as severe as its effect on the exit code.
    opened = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    yield _command("notice", summary_of(report), title=f"preflight {report.run.verb}: {report.verdict.value}")
    for broken in report.coverage.broken:
        message = f"{broken.where} of {broken.plugin} cannot be used: {broken.why}"
        yield _command(_level(report), message, title="preflight: a plugin is broken")
    for finding in report.findings:
        yield _of_finding(finding)
    for outcome in opened:
        yield _of_outcome(outcome, _level(report))


def summary_of(report: Report) -> str:
    """Return all counts in one line: `2 errors, 1 warning; 3 required checks could not be decided; 1 suppressed`."""
    counts = {severity: sum(f.severity is severity for f in report.findings) for severity in Severity}
    found = ", ".join(_plural(number, severity.value) for severity, number in counts.items() if number)
    if report.verdict is VerdictKind.NOT_JUDGED:
        found = why_not_judged(report)
    opened = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
    more = (
        undecided(opened) if opened else "",
        compared_with(report).removeprefix("; "),
        f"{len(report.suppressed)} suppressed" if report.suppressed else "",
        f"fault injected ({report.run.smoke_options.injected_fault.option_text}): not a verdict about the nodes"
        if report.run.smoke_options.injected_fault
        else "",
        f"GitHub shows {MAX_SHOWN} of each kind; the log has all"
        if max(*counts.values(), counts[Severity.ERROR] + opened) > MAX_SHOWN
        else "",
    )
    return "; ".join((found or "nothing found", *(part for part in more if part)))


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if what == "info" or number == 1 else f"{number} {what}s"


def _level(report: Report) -> str:
    return "warning" if report.exit_code == ExitCode.GO else "error"


def _of_finding(finding: Finding) -> str:
    on = f"\non {fold_nodes(finding.nodes)}" if finding.nodes else ""
    fix = f"\nFix: {finding.remedy}" if finding.remedy else ""
    others = "".join(
        f"\nalso {place.path}:{place.line}" + (f": {place.note}" if place.note else "")
        for place in finding.locations[1:]
    )
    place = finding.locations[0] if finding.locations else None
    title = f"{finding.id} {finding.name}"
    return _command(_COMMANDS[finding.severity], f"{finding.message}{on}{others}{fix}", title=title, place=place)


def _of_outcome(outcome: Outcome, level: str) -> str:
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
