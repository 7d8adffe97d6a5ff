"""Workflow commands of GitHub Actions: findings as annotations of a run and of a pull request's diff.

GitHub keeps ten errors, ten warnings and ten notices of a step, in the order in which they come, and drops the rest of
the annotations without a word; the lines stay in the log. So the worst come first, and the first line counts all.
Nothing but commands is written: a line of a hostile file that looks like one is never at the beginning of ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.outcome import Finding, Location, Outcome, Severity
from preflight.report import ExitCode, Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean, fold_nodes

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
#: So many annotations of each kind does GitHub keep of a step.
MOST_SHOWN = 10


class GithubReporter:
    """The verdict as a notice, then a command a finding."""

    name = "github"

    def render(self, report: Report, style: Style) -> bytes:
        """The commands, one a line; `style` has no influence."""
        return "".join(f"{line}\n" for line in _commands(report)).encode("utf-8", "replace")


def _commands(report: Report) -> Iterator[str]:
    # Findings come worst first already; what is open is as bad as what it makes of the exit code.
    opened = [outcome for outcome in report.coverage.not_told if outcome.required]
    yield _command("notice", summary_of(report), title=f"preflight {report.run.verb}: {report.verdict.value}")
    for broken in report.coverage.broken:
        said = f"{broken.where} of {broken.plugin} cannot be used: {broken.why}"
        yield _command(_level(report), said, title="preflight: a plugin is broken")
    for finding in report.findings:
        yield _of_finding(finding)
    for outcome in opened:
        yield _of_outcome(outcome, _level(report))


def summary_of(report: Report) -> str:
    """`2 errors, 1 warning; 3 could not be told; 1 suppressed`: how much there is of everything, in one line."""
    counts = {severity: sum(f.severity is severity for f in report.findings) for severity in Severity}
    found = ", ".join(_plural(number, severity.value) for severity, number in counts.items() if number)
    opened = sum(outcome.required for outcome in report.coverage.not_told)
    more = (
        f"{opened} could not be told" if opened else "",
        f"{len(report.suppressed)} suppressed" if report.suppressed else "",
        f"drill {report.run.wish.drill.spelled}: no verdict about the nodes" if report.run.wish.drill else "",
        f"GitHub shows {MOST_SHOWN} of a kind, the log has all"
        if max(*counts.values(), counts[Severity.ERROR] + opened) > MOST_SHOWN
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
    title = f"could not be told: {outcome.id} {outcome.name}"
    place = next(iter(outcome.locations), None)
    return _command(level, f"{outcome.subject}: {outcome.reason}", title=title, place=place)


def _command(name: str, message: str, *, title: str, place: Location | None = None) -> str:
    """One workflow command; columns only where it begins and ends on one line, as GitHub wants it."""
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
