"""A report as test cases, and JUnit XML, which Jenkins, GitLab and most report actions of GitHub show.

JUnit XML has no single schema. The output is valid against the schema of Jenkins' xUnit plugin, which matches what Ant
wrote and what other tools read: no additional attributes.

Readers of JUnit know passed, failed and skipped, and fail a build if a case failed. So a case fails exactly if the exit
code is not 0: a finding below `--fail-on` or a suppressed one is a skipped case with the reason, and a required check
that could not be decided is an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from xml.etree import ElementTree

from preflight._util.sanitize import clean, fold_nodes
from preflight._util.sequences import grouped
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Finding, Outcome, Severity, Status, VerdictKind
from preflight.reporters.base import Style
from preflight.reporters.text.groups import why_not_judged

_ELEMENTS = {"failed": "failure", "error": "error", "skipped": "skipped"}
#: Characters that XML forbids and `clean` keeps: code points that are not assigned.
_ILLEGAL = re.compile("[\ufffe\uffff]")


class JunitReporter:
    """Renders one suite per stage and one case per finding, undecided check or pass."""

    name = "junit"

    def render(self, report: Report, style: Style) -> bytes:
        cases, durations, when = cases_of(report), durations_of(report), started_at(report)
        root = ElementTree.Element("testsuites", {"name": "preflight", **_counts(cases)})
        for number, (name, members) in enumerate(grouped((case.suite, case) for case in cases).items()):
            attributes = {
                "name": name if name == RUN else f"preflight {name}",
                **_counts(members),
                "skipped": _count(members, "skipped"),
                "time": f"{durations.get(name, 0.0):.3f}",
                "id": str(number),
            }
            if when is not None:
                attributes["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%S")
            suite = ElementTree.SubElement(root, "testsuite", attributes)
            if name == RUN:
                _properties(suite, report)
            for case in members:
                _case(suite, case)
        ElementTree.indent(root)
        written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        return written + b"\n"


def _counts(cases: Iterable[Case]) -> dict[str, str]:
    held = list(cases)
    return {"tests": str(len(held)), "failures": _count(held, "failed"), "errors": _count(held, "error")}


def _count(cases: Iterable[Case], state: str) -> str:
    return str(sum(case.state == state for case in cases))


def _properties(suite: ElementTree.Element, report: Report) -> None:
    element = ElementTree.SubElement(suite, "properties")
    values = {
        "version": report.tool.version,
        "verb": report.run.verb,
        "verdict": report.verdict.value,
        "exit_code": str(int(report.exit_code)),
        "not_applicable": str(report.coverage.not_applicable),
    }
    if report.run.smoke_options.injected_fault is not None:
        values["injected_fault"] = report.run.smoke_options.injected_fault.option_text
    for name, value in values.items():
        ElementTree.SubElement(element, "property", {"name": name, "value": _legal_xml(value)})


def _case(suite: ElementTree.Element, case: Case) -> None:
    # Jenkins takes the text before the last dot for a package and the rest for a class.
    classname = f"preflight.{case.suite}.{case.id}" if case.id else RUN
    element = ElementTree.SubElement(
        suite,
        "testcase",
        {
            "classname": _legal_xml(classname),
            "name": _legal_xml(case.name),
            "time": "0",
        },
    )
    if case.state in _ELEMENTS:
        attributes = {
            "type": _legal_xml(case.kind),
            "message": _legal_xml(case.message),
        }
        ElementTree.SubElement(element, _ELEMENTS[case.state], attributes).text = _legal_xml(case.detail) or None


def _legal_xml(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)


REPORTER = JunitReporter()


#: Suite of the cases about the run as a whole.
RUN = "preflight"
_EXIT_REASONS = {
    ExitCode.NO_GO: "findings make the verdict no-go",
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
    """Return the verdict, then applicable findings, undecided checks and passes, by stage and id."""
    stages = {outcome.id: outcome.stage for outcome in report.outcomes}
    order = {stage: number for number, stage in enumerate(("lint", "node", "link", "smoke"))}
    found = [_finding_case(report, finding, stages) for finding in (*report.findings, *report.suppressed)]
    found.extend(
        _outcome_case(report, outcome) for outcome in report.outcomes if outcome.status in (Status.PASS, Status.UNKNOWN)
    )
    # Sorting keeps findings before the other outcomes of the same rule.
    found.sort(key=lambda case: (order.get(case.suite, len(order)), case.suite, case.id))
    return tuple(_number_names([*_run_cases(report), *found]))


def durations_of(report: Report) -> dict[str, float]:
    """Return the duration of each stage in seconds."""
    found: dict[str, float] = {}
    for stage in report.run.stages:
        found[stage.name] = found.get(stage.name, 0.0) + max(0.0, stage.finished_s - stage.started_s)
    return found


def started_at(report: Report) -> datetime | None:
    """Return the start of the run in UTC, or None if the report does not give it."""
    try:
        return datetime.fromisoformat(report.run.created).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


def _run_cases(report: Report) -> Iterator[Case]:
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
        yield Case(RUN, "", clean(f"{broken.plugin} {broken.where}"), _undecided_state(report), "unknown", why)


def _finding_case(report: Report, finding: Finding, stages: dict[str, str]) -> Case:
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


def _outcome_case(report: Report, outcome: Outcome) -> Case:
    name = f"{clean(outcome.name)} ({clean(outcome.subject)})"
    if outcome.status is Status.PASS:
        return Case(outcome.stage, outcome.id, name, "passed", "pass")
    first = outcome.locations[0] if outcome.locations else None
    return Case(
        suite=outcome.stage,
        id=outcome.id,
        name=name,
        state=_undecided_state(report) if outcome.required else "skipped",
        kind="unknown",
        message=f"could not be decided: {clean(outcome.reason.partition(chr(10))[0])}",
        detail=clean(outcome.reason, keep_newlines=True),
        path=clean(first.path) if first else "",
        line=first.line if first else 0,
    )


def _undecided_state(report: Report) -> str:
    """Return the state of an undecided check: `error`, unless `--allow-incomplete` was given."""
    return "skipped" if report.exit_code == ExitCode.GO else "error"


def _number_names(cases: list[Case]) -> Iterator[Case]:
    from dataclasses import replace

    met: Counter[tuple[str, str]] = Counter()
    for case in cases:
        met[case.id, case.name] += 1
        again = met[case.id, case.name]
        yield replace(case, name=f"{case.name} #{again}") if again > 1 else case
