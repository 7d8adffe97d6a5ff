"""Two reports held against each other: a pure function of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from preflight.difference.findings import of_findings, packs
from preflight.difference.measured import of_measurements
from preflight.difference.model import (
    Answer,
    Changed,
    Difference,
    Drift,
    Gone,
    Measured,
    New,
    NodeChange,
    NodeMove,
    OutcomeChange,
    Side,
)
from preflight.difference.tables import of_tables
from preflight.outcome import Outcome, Severity, Status, without_lines
from preflight.report import ExitCode, Report


def compare(
    old: Report, new: Report, *, names: tuple[str, str], fail_on: str = "", allow_incomplete: bool = False
) -> Difference:
    """What changed from the older report to the newer one.

    Args:
        names: what the two are called.
        fail_on: the mildest severity that counts; empty = that of the newer report's configuration. What got slower is
            a warning, as a slow link is.
        allow_incomplete: what is not told any more does not count.
    """
    severity = Severity(fail_on or new.configuration.fail_on)
    appeared, gone, changed, unchanged = of_findings(old, new, severity)
    became_unknown = tuple(_became(old, new))
    became_told = tuple(_became(new, old))
    measured = of_measurements(old.exhibits, new.exhibits)
    nodes = tuple(_nodes(old, new))
    drift = (*_of_tool(old, new), *of_tables(old.exhibits, new.exhibits))
    slower = any(item.worse for item in measured) and Severity.WARNING.rank >= severity.rank
    worse = slower or any(item.counts for item in appeared) or any(item.counts for item in changed)
    untold = any(item.required for item in became_unknown) or any(item.move is NodeMove.SILENT for item in nodes)
    answer = _answer(worse=worse, untold=untold, better=_better(gone, changed), appeared=appeared, measured=measured)
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
        became_told=became_told,
        nodes=nodes,
        drift=drift,
        measured=measured,
        notes=tuple(_notes(old, new)),
    )


def _answer(
    *, worse: bool, untold: bool, better: bool, appeared: Sequence[New], measured: Sequence[Measured]
) -> Answer:
    if worse:
        return Answer.WORSE
    if untold:
        return Answer.UNTOLD
    return Answer.BETTER if better and not appeared and not any(m.worse for m in measured) else Answer.SAME


def _better(gone: Iterable[Gone], changed: Iterable[Changed]) -> bool:
    return any(not item.untold for item in gone) or any(
        item.after.severity.rank < item.before.severity.rank for item in changed
    )


def _exit_code(answer: Answer, *, allow_incomplete: bool) -> int:
    if answer is Answer.WORSE:
        return ExitCode.NO_GO
    return ExitCode.INCOMPLETE if answer is Answer.UNTOLD and not allow_incomplete else ExitCode.GO


def _side(report: Report, name: str) -> Side:
    run = report.run
    return Side(
        name,
        run.verb,
        run.created,
        report.tool.version,
        report.verdict.value,
        len(report.nodes),
        len(report.findings),
    )


def _became(told: Report, untold: Report) -> Iterator[OutcomeChange]:
    """What could be told in the one report and not in the other, by rule or check and reason.

    A rule or check that the first one did not ask, or could not tell itself, has not changed.
    """
    knows = {outcome.id for outcome in told.outcomes if outcome.status is not Status.UNKNOWN}
    before = {(outcome.id, without_lines(outcome.subject)) for outcome in _unknown(told)}
    found: dict[tuple[str, str, bool], list[Outcome]] = {}
    for outcome in _unknown(untold):
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
        # One of them is a lint, or could not find any: that is no change of nodes.
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
    """preflight itself and its packs: another version may look for more."""
    if old.tool.version != new.tool.version:
        yield Drift("tool", new.tool.name, old.tool.version, new.tool.version)
    before, after = packs(old), packs(new)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield Drift("tool", name, before.get(name, ""), after.get(name, ""))


def _notes(old: Report, new: Report) -> Iterator[str]:
    """What makes the two less comparable than they look."""
    if old.run.verb != new.run.verb:
        yield f"the older report is of `{old.run.verb}`, the newer one of `{new.run.verb}`: they look at other things"
    for what, before, after in (
        ("profile", old.configuration.profile, new.configuration.profile),
        ("selection", old.configuration.select, new.configuration.select),
        ("executor", old.run.executor, new.run.executor),
        ("job context", old.run.context, new.run.context),
    ):
        if before != after and old.run.verb == new.run.verb:
            yield f"the {what} differs: {_shown(before)} before, {_shown(after)} now"
    drills = [report.run.wish.drill for report in (old, new)]
    if any(drills):
        which = "both reports" if all(drills) else "the older report" if drills[0] else "the newer report"
        yield f"{which} played a fault on request (--drill), so what differs may be that fault"
    if bool(old.exhibits) != bool(new.exhibits) and old.nodes and new.nodes:
        which = "older" if new.exhibits else "newer"
        yield f"the {which} report holds no measurements, so versions and speeds are not compared"


def _shown(value: str | tuple[str, ...]) -> str:
    return (value if isinstance(value, str) else ",".join(value)) or "none"
