"""The answer in one line, and what to do first: what a person wants whose job is about to be submitted."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.hosts import hosts_of
from preflight.outcome import Finding, Severity, Status, VerdictKind
from preflight.report import ExitCode, Report
from preflight.reporters.clean import fold_nodes
from preflight.reporters.grouping import by_reason, count, counted, saved_whence, saved_words
from preflight.reporters.html.findings import anchor_of, first_commands
from preflight.reporters.html.nodes import ways_of
from preflight.reporters.html.view import CommandView, Step, VerdictView

_WORDS = {VerdictKind.GO: "Go", VerdictKind.NO_GO: "No-go", VerdictKind.INCOMPLETE: "Incomplete"}
_SENTENCES = {
    VerdictKind.GO: "Nothing was found that would stop this job.",
    VerdictKind.NO_GO: "Do not submit this job yet.",
    VerdictKind.INCOMPLETE: "Not enough could be looked at to say go.",
}
#: So many things to do are more than anybody does first.
_MOST_STEPS = 3
#: Names longer than this are counted.
_LONGEST_NAMES = 80


def verdict_view(report: Report) -> VerdictView:
    """The verdict in words."""
    warnings = tuple(_warnings(report))
    if report.exit_code == ExitCode.BUG:
        sentence = "A bug in preflight ended the run; what it saw until then stands below."
        return VerdictView("incomplete", "Incomplete", sentence, _counts(report), warnings)
    if report.exit_code == ExitCode.NOTHING_TO_DO:
        sentence = "No launch script or configuration was recognised in the paths given."
        return VerdictView("incomplete", "Nothing to do", sentence, _counts(report), warnings)
    word = _WORDS[report.verdict]
    drill = report.run.wish.drill is not None
    return VerdictView(
        report.verdict.value,
        f"Drill: {word}" if drill else word,
        _SENTENCES[report.verdict],
        _counts(report),
        warnings,
        saved_words(report.saved) if report.saved is not None else "",
        saved_whence(report.saved) if report.saved is not None else (),
    )


def _warnings(report: Report) -> list[str]:
    found = []
    drill = report.run.wish.drill
    if drill is not None:
        found.append(
            f"Drill {drill.spelled}: a fault was played in this run because it was asked for. It tells how the fault "
            "looks and how fast it is named, and is no verdict about the nodes."
        )
        found.extend(
            outcome.subject
            for outcome in report.outcomes
            if outcome.status is Status.PASS and outcome.subject.startswith("drill: ")
        )
    if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        found.append("The run was interrupted: what was not reached until then is not in this report.")
    return found


def _counts(report: Report) -> str:
    said = [counted(report.findings)] if report.findings else ["nothing found"]
    required = sum(outcome.required for outcome in report.coverage.not_told)
    if required:
        said.append(f"{required} that had to be told and could not")
    hosts = hosts_of(report)
    if report.nodes:
        said.append(f"{len(hosts.passing)} of {count(len(report.nodes), 'node')} fit")
    skipped = [stage.name for stage in report.run.stages if stage.skipped]
    if skipped:
        said.append(f"{' and '.join(skipped)} did not take place")
    return "; ".join(said)


def first_steps(report: Report) -> tuple[tuple[Step, ...], int]:
    """What to do first, and how many further findings are as bad and not among it.

    Several findings of one rule are one step: who has understood the first mends the others, too.
    """
    stopping: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if _stops(finding, report):
            stopping.setdefault(finding.id, []).append(finding)
    chosen = list(stopping.values())[:_MOST_STEPS]
    steps = [_step(same) for same in chosen]
    hosts = hosts_of(report)
    ways = ways_of(report, hosts)
    if ways:
        names = fold_nodes(hosts.failing)
        if len(names) > _LONGEST_NAMES:
            names = count(len(hosts.failing), "node")
        commands = tuple(CommandView(way.text) for way in ways if way.is_command)[:1]
        text = "" if commands else ways[0].text
        steps.append(Step(f"Or start without the nodes that are not fit: {names}", text, commands))
    if not stopping:
        steps.extend(_open_questions(report))
    return tuple(steps), sum(map(len, stopping.values())) - sum(map(len, chosen))


def _stops(finding: Finding, report: Report) -> bool:
    return finding.severity.rank >= Severity(report.configuration.fail_on).rank


def _step(same: Sequence[Finding]) -> Step:
    first = same[0]
    where = f"{first.locations[0].path}:{first.locations[0].line}" if first.locations else ""
    return Step(first.message, first.remedy, first_commands(first), anchor_of(first), alike=len(same) - 1, where=where)


def _open_questions(report: Report) -> list[Step]:
    """What has to be made possible to look at, where that is what the verdict lacks."""
    required = [outcome for outcome in report.coverage.not_told if outcome.required]
    found = []
    for same in by_reason(required)[:_MOST_STEPS]:
        subjects = fold_nodes(tuple(dict.fromkeys(outcome.subject for outcome in same)))
        names = ", ".join(dict.fromkeys(outcome.name for outcome in same))
        found.append(Step(f"Make it possible to tell {names} ({subjects})", same[0].reason, target="not-looked-at"))
    return found
