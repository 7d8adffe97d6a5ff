"""The verdict in one line, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence

from preflight._util.sanitize import fold_nodes
from preflight.engine.node_status import hosts_of
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Finding, Severity, Status, VerdictKind
from preflight.reporters.html.finding_section import anchor_of, first_commands
from preflight.reporters.html.node_section import starts_of
from preflight.reporters.html.view import CommandView, Step, VerdictView
from preflight.reporters.text.groups import avoided_cost, avoided_cost_sources, by_reason, count, counted, undecided

_WORDS = {
    VerdictKind.GO: "Go",
    VerdictKind.NO_GO: "No-go",
    VerdictKind.INCOMPLETE: "Incomplete",
    VerdictKind.NOT_JUDGED: "Not judged",
}
_SENTENCES = {
    VerdictKind.GO: "Nothing found that would stop this job.",
    VerdictKind.NO_GO: "Do not submit this job yet.",
    VerdictKind.INCOMPLETE: "Too little could be checked to say go.",
    VerdictKind.NOT_JUDGED: "No launch was recognised, so the behaviour of the ranks is unknown.",
}
#: Largest number of steps shown.
_MAX_STEPS = 3
#: Lists of names longer than this are counted.
_MAX_NAMES_LENGTH = 80


def verdict_view(report: Report) -> VerdictView:
    """Build the verdict section of the page."""
    warnings = tuple(_warnings(report))
    if report.exit_code == ExitCode.BUG:
        sentence = "A bug in preflight ended the run; its results up to then are below."
        return VerdictView("incomplete", "Incomplete", sentence, _counts(report), warnings)
    word = _WORDS[report.verdict]
    fault = report.run.smoke_options.injected_fault is not None
    return VerdictView(
        report.verdict.value,
        f"Fault injected: {word}" if fault else word,
        _SENTENCES[report.verdict],
        _counts(report),
        warnings,
        avoided_cost(report.avoided_cost) if report.avoided_cost is not None else "",
        avoided_cost_sources(report.avoided_cost) if report.avoided_cost is not None else (),
    )


def _warnings(report: Report) -> list[str]:
    found = []
    fault = report.run.smoke_options.injected_fault
    if fault is not None:
        found.append(
            f"Fault injected ({fault.option_text}): the options of this run requested it. The report shows how and "
            "how soon the fault is found; it is not a verdict about the nodes."
        )
        found.extend(
            outcome.subject
            for outcome in report.outcomes
            if outcome.status is Status.PASS and outcome.subject.startswith("injected fault: ")
        )
    if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        found.append("The run was interrupted, so this report is not complete.")
    return found


def _counts(report: Report) -> str:
    parts = [counted(report.findings)] if report.findings else ["nothing found"]
    required = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
    if required:
        parts.append(undecided(required))
    hosts = hosts_of(report)
    if report.nodes:
        parts.append(f"{len(hosts.passing)} of {count(len(report.nodes), 'node')} fit")
    skipped = [stage.name for stage in report.run.stages if stage.skipped]
    if skipped:
        parts.append(f"{' and '.join(skipped)} did not run")
    return "; ".join(parts)


def first_steps(report: Report) -> tuple[tuple[Step, ...], int]:
    """Return the first steps, and the number of further findings of the same severity.

    Findings of one rule are one step, since they are usually fixed together.
    """
    stopping: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if _stops(finding, report):
            stopping.setdefault(finding.id, []).append(finding)
    chosen = list(stopping.values())[:_MAX_STEPS]
    steps = [_step(same) for same in chosen]
    hosts = hosts_of(report)
    starts = starts_of(report, hosts)
    if starts:
        names = fold_nodes(hosts.failing)
        if len(names) > _MAX_NAMES_LENGTH:
            names = count(len(hosts.failing), "node")
        commands = tuple(CommandView(start.text) for start in starts if start.is_command)[:1]
        text = "" if commands else starts[0].text
        steps.append(Step(f"Or start without the failing nodes: {names}", text, commands))
    if not stopping:
        steps.extend(_open_questions(report))
    return tuple(steps), sum(map(len, stopping.values())) - sum(map(len, chosen))


def _stops(finding: Finding, report: Report) -> bool:
    return finding.severity.rank >= Severity(report.configuration.fail_on).rank


def _step(same: Sequence[Finding]) -> Step:
    first = same[0]
    where = f"{first.locations[0].path}:{first.locations[0].line}" if first.locations else ""
    return Step(
        first.message, first.remedy, first_commands(first), anchor_of(first), same_count=len(same) - 1, where=where
    )


def _open_questions(report: Report) -> list[Step]:
    """Return what to do about each required check that could not be decided."""
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    found = []
    for same in by_reason(required)[:_MAX_STEPS]:
        subjects = fold_nodes(tuple(dict.fromkeys(outcome.subject for outcome in same)))
        names = ", ".join(dict.fromkeys(outcome.name for outcome in same))
        found.append(Step(f"Make it possible to decide {names} ({subjects})", same[0].reason, target="not-looked-at"))
    return found
