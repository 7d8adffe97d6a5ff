"""Compares two reports; a pure function of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from preflight.commands.diff.difference import (
    Answer,
    ChangedFinding,
    Difference,
    Drift,
    GoneFinding,
    Measured,
    NewFinding,
    NodeChange,
    NodeMove,
    OutcomeChange,
    ReportSummary,
)
from preflight.commands.diff.finding_changes import compare_findings, packs
from preflight.commands.diff.measurement_changes import compare_measurements
from preflight.commands.diff.table_changes import compare_tables
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Outcome, Severity, Status, without_lines


def compare(
    old: Report, new: Report, *, names: tuple[str, str], fail_on: str = "", allow_incomplete: bool = False
) -> Difference:
    """Return what changed from the older report to the newer one.

    Args:
        names: the names of the two reports.
        fail_on: the lowest severity that counts; empty means that of the newer report's configuration. Slower links and
            steps are warnings.
        allow_incomplete: ignore what is no longer known.
    """
    severity = Severity(fail_on or new.configuration.fail_on)
    appeared, gone, changed, unchanged = compare_findings(old, new, severity)
    became_unknown = tuple(_newly_undecided(old, new))
    became_known = tuple(_newly_undecided(new, old))
    measured = compare_measurements(old.charts, new.charts)
    nodes = tuple(_nodes(old, new))
    drift = (*_of_tool(old, new), *compare_tables(old.charts, new.charts))
    slower = any(item.worse for item in measured) and Severity.WARNING.rank >= severity.rank
    worse = slower or any(item.counts for item in appeared) or any(item.counts for item in changed)
    has_unknown = any(item.required for item in became_unknown) or any(item.move is NodeMove.SILENT for item in nodes)
    answer = _answer(
        worse=worse, has_unknown=has_unknown, better=_better(gone, changed), appeared=appeared, measured=measured
    )
    return Difference(
        old=_side(old, names[0]),
        new=_side(new, names[1]),
        answer=answer,
        exit_code=_exit_code(answer, allow_incomplete=allow_incomplete),
        fail_on=severity.value,
        appeared=appeared,
        gone=gone,
        changed=changed,
        unchanged=unchanged,
        became_unknown=became_unknown,
        became_known=became_known,
        nodes=nodes,
        drift=drift,
        measured=measured,
        notes=tuple(_notes(old, new)),
    )


def _answer(
    *, worse: bool, has_unknown: bool, better: bool, appeared: Sequence[NewFinding], measured: Sequence[Measured]
) -> Answer:
    if worse:
        return Answer.WORSE
    if has_unknown:
        return Answer.UNKNOWN
    return Answer.BETTER if better and not appeared and not any(m.worse for m in measured) else Answer.SAME


def _better(gone: Iterable[GoneFinding], changed: Iterable[ChangedFinding]) -> bool:
    return any(not item.unknown_because for item in gone) or any(
        item.after.severity.rank < item.before.severity.rank for item in changed
    )


def _exit_code(answer: Answer, *, allow_incomplete: bool) -> int:
    if answer is Answer.WORSE:
        return ExitCode.NO_GO
    return ExitCode.INCOMPLETE if answer is Answer.UNKNOWN and not allow_incomplete else ExitCode.GO


def _side(report: Report, name: str) -> ReportSummary:
    run = report.run
    return ReportSummary(
        name,
        run.verb,
        run.created,
        report.tool.version,
        report.verdict.value,
        len(report.nodes),
        len(report.findings),
    )


def _newly_undecided(known: Report, has_unknown: Report) -> Iterator[OutcomeChange]:
    """Return what one report decided and the other did not, by rule or check and reason.

    A rule or check that the first report did not run or could not decide has not changed.
    """
    knows = {outcome.id for outcome in known.outcomes if outcome.status is not Status.UNKNOWN}
    before = {(outcome.id, without_lines(outcome.subject)) for outcome in _unknown(known)}
    found: dict[tuple[str, str, bool], list[Outcome]] = {}
    for outcome in _unknown(has_unknown):
        if outcome.id in knows and (outcome.id, without_lines(outcome.subject)) not in before:
            found.setdefault((outcome.id, outcome.reason, outcome.required), []).append(outcome)
    for (id, reason, required), several in sorted(found.items(), key=lambda item: (not item[0][2], item[0])):
        subjects = tuple(sorted({outcome.subject for outcome in several}))
        yield OutcomeChange(id, several[0].name, subjects, reason, required)


def _unknown(report: Report) -> Iterator[Outcome]:
    return (outcome for outcome in report.outcomes if outcome.status is Status.UNKNOWN)


def _nodes(old: Report, new: Report) -> Iterator[NodeChange]:
    before = {record.node.name: record.problem for record in old.nodes}
    after = {record.node.name: record.problem for record in new.nodes}
    if not before or not after:
        # One of them is a lint, or found no nodes: that is not a change of nodes.
        return
    for name in sorted({*before, *after}):
        if name not in before:
            yield NodeChange(name, NodeMove.CAME, after[name])
        elif name not in after:
            yield NodeChange(name, NodeMove.WENT)
        elif after[name] and not before[name]:
            yield NodeChange(name, NodeMove.SILENT, after[name])
        elif before[name] and not after[name]:
            yield NodeChange(name, NodeMove.ANSWERS)


def _of_tool(old: Report, new: Report) -> Iterator[Drift]:
    """Return changes of preflight itself and its packs, because another version may check more."""
    if old.tool.version != new.tool.version:
        yield Drift("tool", new.tool.name, old.tool.version, new.tool.version)
    before, after = packs(old), packs(new)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield Drift("tool", name, before.get(name, ""), after.get(name, ""))


def _notes(old: Report, new: Report) -> Iterator[str]:
    """Return notes on differences between the runs that make the reports less comparable."""
    if old.run.verb != new.run.verb:
        yield f"the older report is of `{old.run.verb}`, the newer one of `{new.run.verb}`: they check different things"
    for what, before, after in (
        ("profile", old.configuration.profile, new.configuration.profile),
        ("selection", old.configuration.select, new.configuration.select),
        ("executor", old.run.executor, new.run.executor),
        ("job context", old.run.context, new.run.context),
    ):
        if before != after and old.run.verb == new.run.verb:
            yield f"the {what} differs: {_shown(before)} before, {_shown(after)} now"
    faults = [report.run.smoke_options.injected_fault for report in (old, new)]
    if any(faults):
        which = "both reports" if all(faults) else "the older report" if faults[0] else "the newer report"
        yield f"{which} has an injected fault (--inject-fault), so the difference may be that fault"
    if bool(old.charts) != bool(new.charts) and old.nodes and new.nodes:
        which = "older" if new.charts else "newer"
        yield f"the {which} report has no measurements, so versions and speeds are not compared"


def _shown(value: str | tuple[str, ...]) -> str:
    return (value if isinstance(value, str) else ",".join(value)) or "none"
