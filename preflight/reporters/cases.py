"""A report as test results: what formats made for test runs (JUnit, CTRF) have in common.

Those who read such files know passed, failed and skipped, and turn red where something failed. So they are made to
turn red exactly where the exit code is not 0: a finding that does not reach `--fail-on`, or is suppressed, is a skipped
case that says why, and what had to be told and could not is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Finding, Outcome, Severity, Status, VerdictKind
from preflight.report import ExitCode, Report
from preflight.reporters.clean import clean, fold_nodes

#: The suite of what is said of the run itself.
RUN = "preflight"
_EXPLAINED = {
    ExitCode.NO_GO: "findings make it no-go",
    ExitCode.NOTHING_TO_DO: "no launch script or configuration was recognised in the paths given",
    ExitCode.BUG: "a bug in preflight ended the run",
    ExitCode.INTERRUPTED: "the run was interrupted",
    ExitCode.TERMINATED: "the run was interrupted",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test result.

    Args:
        suite: the stage, or `RUN`.
        id: of the rule or check; empty for what is said of the run.
        name: the rule or check in words, and what it was asked about; no two cases of an id have the same.
        state: `passed`, `failed` (a finding that counts), `error` (it had to be told and could not), or `skipped`.
        kind: what it is in the words of the report: `pass`, a severity, `suppressed`, `unknown`, or a verdict.
        message: one line.
        detail: everything else there is to know, on lines of its own.
        path, line: where the fault is, if in a file.
    """

    suite: str
    id: str
    name: str
    state: str
    kind: str
    message: str = ""
    detail: str = ""
    path: str = ""
    line: int = 0


def cases_of(report: Report) -> tuple[Case, ...]:
    """The verdict first, then every finding, open question and pass, by stage and id.

    What does not apply to the job is left out.
    """
    stages = {outcome.id: outcome.stage for outcome in report.outcomes}
    order = {stage: number for number, stage in enumerate(("lint", "node", "link", "smoke"))}
    found = [_of_finding(report, finding, stages) for finding in (*report.findings, *report.suppressed)]
    found.extend(_of_outcome(report, outcome) for outcome in report.outcomes if _is_case(outcome))
    # Sorting keeps findings before the rest of the same rule.
    found.sort(key=lambda case: (order.get(case.suite, len(order)), case.suite, case.id))
    return tuple(_numbered([*_of_run(report), *found]))


def suites_of(cases: tuple[Case, ...]) -> dict[str, list[Case]]:
    """The same by suite, in order."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.suite, []).append(case)
    return found


def durations_of(report: Report) -> dict[str, float]:
    """Seconds that each stage took."""
    found: dict[str, float] = {}
    for stage in report.run.stages:
        found[stage.name] = found.get(stage.name, 0.0) + max(0.0, stage.finished_s - stage.started_s)
    return found


def began(report: Report) -> datetime | None:
    """When the run was made, in UTC; None where the report does not tell."""
    try:
        return datetime.fromisoformat(report.run.created).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def _is_case(outcome: Outcome) -> bool:
    return outcome.status in (Status.PASS, Status.UNKNOWN)


def _of_run(report: Report) -> Iterator[Case]:
    # There is always this one: an empty file is taken for a broken one by most readers.
    verdict = report.verdict
    if report.exit_code == ExitCode.GO:
        state, message = "passed", ""
    else:
        state = "failed" if verdict is VerdictKind.NO_GO else "error"
        why = _EXPLAINED.get(ExitCode(report.exit_code), "something that had to be told could not be")
        message = f"{verdict.value}: {why}"
    yield Case(RUN, "", "verdict", state, verdict.value, message)
    for broken in report.coverage.broken:
        why = clean(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")
        yield Case(RUN, "", clean(f"{broken.plugin} {broken.where}"), _open(report), "unknown", why)


def _of_finding(report: Report, finding: Finding, stages: dict[str, str]) -> Case:
    counts = finding.severity.rank >= Severity(report.configuration.fail_on).rank
    kind = "suppressed" if finding.suppressed_by else finding.severity.value
    state = "failed" if counts and not finding.suppressed_by else "skipped"
    message = clean(finding.message.partition("\n")[0])
    if finding.suppressed_by:
        message = f"suppressed by {finding.suppressed_by}: {clean(finding.suppression)} ({message})"
    elif state == "skipped":
        message = f"{finding.severity.value}: {message}"
    about = fold_nodes(finding.nodes) or clean(finding.subject)
    first = finding.locations[0] if finding.locations else None
    return Case(
        suite=stages.get(finding.id, RUN),
        id=finding.id,
        name=f"{clean(finding.name)} ({about})",
        state=state,
        kind=kind,
        message=message,
        detail="\n".join(_lines(finding)),
        path=clean(first.path) if first else "",
        line=first.line if first else 0,
    )


def _lines(finding: Finding) -> Iterator[str]:
    yield clean(finding.message, keep_newlines=True)
    for place in finding.locations:
        note = f" {clean(place.note)}" if place.note else ""
        yield f"  --> {clean(place.path)}:{place.line}:{place.column}{note}"
        if place.snippet:
            yield f"      {clean(place.snippet)}"
    if finding.nodes:
        yield f"on {fold_nodes(finding.nodes)}"
    for item in finding.evidence:
        on = f"{clean(item.node)}: " if item.node else ""
        expected = f", expected {clean(item.expected)}" if item.expected else ""
        yield f"  {on}{clean(item.fact)} observed {clean(item.observed)}{expected}"
    if finding.remedy:
        yield f"fix: {clean(finding.remedy, keep_newlines=True)}"


def _of_outcome(report: Report, outcome: Outcome) -> Case:
    name = f"{clean(outcome.name)} ({clean(outcome.subject)})"
    if outcome.status is Status.PASS:
        return Case(outcome.stage, outcome.id, name, "passed", "pass")
    first = outcome.locations[0] if outcome.locations else None
    return Case(
        suite=outcome.stage,
        id=outcome.id,
        name=name,
        state=_open(report) if outcome.required else "skipped",
        kind="unknown",
        message=f"could not be told: {clean(outcome.reason.partition(chr(10))[0])}",
        detail=clean(outcome.reason, keep_newlines=True),
        path=clean(first.path) if first else "",
        line=first.line if first else 0,
    )


def _open(report: Report) -> str:
    """An open question is an error unless the user said that it may be one (`--allow-incomplete`)."""
    return "skipped" if report.exit_code == ExitCode.GO else "error"


def _numbered(cases: list[Case]) -> Iterator[Case]:
    from dataclasses import replace

    met: Counter[tuple[str, str]] = Counter()
    for case in cases:
        met[case.id, case.name] += 1
        again = met[case.id, case.name]
        yield replace(case, name=f"{case.name} #{again}") if again > 1 else case
