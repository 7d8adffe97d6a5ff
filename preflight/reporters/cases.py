"""A report as test cases, for JUnit.

Readers of JUnit know passed, failed and skipped, and fail a build if a case failed. So a case fails exactly if
the exit code is not 0: a finding below `--fail-on` or a suppressed one is a skipped case with the reason, and a
required check that could not be decided is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Finding, Outcome, Severity, Status, VerdictKind
from preflight.reporters.text.groups import why_not_judged

#: Suite of the cases about the run as a whole.
RUN = "preflight"
_EXIT_REASONS = {
    ExitCode.NO_GO: "findings make it no-go",
    ExitCode.BUG: "a bug in preflight ended the run",
    ExitCode.INTERRUPTED: "the run was interrupted",
    ExitCode.TERMINATED: "the run was interrupted",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test case.

    Args:
        suite: the stage, or `RUN`.
        id: id of the rule or check; empty for a case about the run.
        name: the rule or check and its subject; unique among the cases of an id.
        state: `passed`, `failed` (a finding that counts), `error` (required but undecided), or `skipped`.
        kind: how the report classifies it: `pass`, a severity, `suppressed`, `unknown`, or a verdict.
        message: one line.
        detail: further information, on separate lines.
        path, line: location in a file, if there is one.
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
    """Return the verdict, then every finding, undecided check and pass, by stage and id.

    Outcomes that do not apply to the job are left out.
    """
    stages = {outcome.id: outcome.stage for outcome in report.outcomes}
    order = {stage: number for number, stage in enumerate(("lint", "node", "link", "smoke"))}
    found = [_of_finding(report, finding, stages) for finding in (*report.findings, *report.suppressed)]
    found.extend(_of_outcome(report, outcome) for outcome in report.outcomes if _is_case(outcome))
    # Sorting keeps findings before the other outcomes of the same rule.
    found.sort(key=lambda case: (order.get(case.suite, len(order)), case.suite, case.id))
    return tuple(_numbered([*_of_run(report), *found]))


def suites_of(cases: tuple[Case, ...]) -> dict[str, list[Case]]:
    """Return the same cases grouped by suite, in order."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.suite, []).append(case)
    return found


def durations_of(report: Report) -> dict[str, float]:
    """Return the seconds that each stage took."""
    found: dict[str, float] = {}
    for stage in report.run.stages:
        found[stage.name] = found.get(stage.name, 0.0) + max(0.0, stage.finished_s - stage.started_s)
    return found


def began(report: Report) -> datetime | None:
    """Return the start of the run in UTC, or None if the report does not give it."""
    try:
        return datetime.fromisoformat(report.run.created).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def _is_case(outcome: Outcome) -> bool:
    return outcome.status in (Status.PASS, Status.UNKNOWN)


def _of_run(report: Report) -> Iterator[Case]:
    # This case always exists, since most readers reject a file without cases.
    verdict = report.verdict
    if report.exit_code == ExitCode.GO:
        state, message = "passed", ""
    else:
        state = "failed" if verdict is VerdictKind.NO_GO else "error"
        why = _EXIT_REASONS.get(ExitCode(report.exit_code), "a required check could not be decided")
        if verdict is VerdictKind.NOT_JUDGED:
            why = why_not_judged(report)
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
        message=f"could not be decided: {clean(outcome.reason.partition(chr(10))[0])}",
        detail=clean(outcome.reason, keep_newlines=True),
        path=clean(first.path) if first else "",
        line=first.line if first else 0,
    )


def _open(report: Report) -> str:
    """Return the state of an undecided check: an error, unless the user allowed it (`--allow-incomplete`)."""
    return "skipped" if report.exit_code == ExitCode.GO else "error"


def _numbered(cases: list[Case]) -> Iterator[Case]:
    from dataclasses import replace

    met: Counter[tuple[str, str]] = Counter()
    for case in cases:
        met[case.id, case.name] += 1
        again = met[case.id, case.name]
        yield replace(case, name=f"{case.name} #{again}") if again > 1 else case
