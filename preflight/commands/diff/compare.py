"""Loads two reports and compares them: verdicts, findings, outcomes, nodes, and what was measured."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight._util import regular_file
from preflight._util.sequences import deviation_from, grouped
from preflight._util.usage_error import UsageError
from preflight._util.validation import format_errors
from preflight.analysis.link_matrix import Cell, shapes
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
    Noise,
    OutcomeChange,
    Regression,
    ReportSummary,
)
from preflight.engine import report as reports
from preflight.engine.report import ExitCode, Report
from preflight.model.charts import Bars, Chart, Matrix, Table, Timeline
from preflight.model.charts import Cell as ChartCell
from preflight.model.configuration import SMOKE, matches
from preflight.model.findings import PROFILES, Finding, Outcome, Severity, Status, without_lines
from preflight.model.recording import Recording
from preflight.model.recording_io import MAX_BYTES, load

#: Smallest number of ratios whose scatter is meaningful.
MIN_RATIOS = 8
#: Number of deviations that counts as noise; in a normal distribution one in 16,000 values is beyond.
DEVIATIONS = 4.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the limit: factors below `floor` never count, and those above `ceiling` (the default limit) always
    do.
    """

    floor: float
    ceiling: float


def noise_of(ratios: Sequence[float], limits: Limits) -> Noise:
    """Return the noise in `ratios`, by the median absolute deviation of their logarithms, which faults do not widen."""
    if len(ratios) < MIN_RATIOS:
        why = f"too few to estimate how much they vary; more than a factor of {limits.ceiling:g} is reported"
        return Noise(len(ratios), None, limits.ceiling, why)
    logs = [math.log(ratio) for ratio in ratios]
    spread = math.exp(deviation_from(statistics.median(logs), logs))
    # Compared as logarithms, because the factor itself may overflow.
    wanted = DEVIATIONS * math.log(spread)
    basis = f"the fleet's ratios vary by a factor of {spread:.3g} (median absolute deviation of {len(ratios)})"
    if wanted <= math.log(limits.floor):
        return Noise(
            len(ratios), spread, limits.floor, f"{basis}; less than a factor of {limits.floor:g} is never reported"
        )
    if wanted >= math.log(limits.ceiling):
        why = f"{basis}; more than a factor of {limits.ceiling:g} is always reported"
        return Noise(len(ratios), spread, limits.ceiling, why)
    return Noise(
        len(ratios), spread, math.exp(wanted), f"{basis}; more than a factor of {math.exp(wanted):.3g} is reported"
    )


#: The key of a measurement: a pair of nodes, or a rank and its node.
Key = tuple[str, str]
#: Keys with their explanation: in words, and as nodes.
Group = tuple[str, tuple[str, ...], list[Key]]
#: If this share of all measurements got worse by more than the noise, the whole fleet got worse.
_FLEET = 0.75
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6}


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A chart that is compared. `least_s`: smaller time differences are not reported, regardless of their factor.

    Limits: TCP over a quiet network repeats within some 10 %, small messages and short pieces of work on busy hosts
    within some 30 %; phases of a run include start-up, where ranks also wait for each other.
    """

    id: str
    limits: Limits
    more_is_better: bool = False
    least_s: float = 0.0


QUANTITIES = (
    _Quantity("links.bandwidth", Limits(1.25, 2.0), more_is_better=True),
    _Quantity("links.latency", Limits(1.5, 3.0), least_s=50e-6),
    _Quantity("smoke.step_times", Limits(1.25, 2.0), least_s=1e-3),
    _Quantity("smoke.stragglers", Limits(1.25, 2.0), least_s=2e-3),
    _Quantity("smoke.steps", Limits(1.5, 3.0), least_s=0.5),
)


@dataclass(frozen=True, slots=True)
class _Grouping:
    """The grouping and naming of the keys of one kind of chart."""

    group_keys: Callable[[Sequence[Key], Iterable[Key]], Iterator[Group]]
    format_subject: Callable[[Key], str]


@dataclass(frozen=True, slots=True)
class _Series:
    """One series of measurements of a report. Each phase of a timeline is one."""

    title: str
    unit: str
    values: Mapping[Key, float]
    grouping: _Grouping


def compare_measurements(old: Sequence[Chart], new: Sequence[Chart]) -> tuple[Measured, ...]:
    return tuple(_compare_series(old, new))


def _compare_series(old: Sequence[Chart], new: Sequence[Chart]) -> Iterator[Measured]:
    for quantity in QUANTITIES:
        before = {(series.title, series.unit): series for series in _all_series(old, quantity.id)}
        for now in _all_series(new, quantity.id):
            was = before.get((now.title, now.unit))
            if was is not None and {*was.values} & {*now.values}:
                yield _judge_series(quantity, was, now)


def _all_series(charts: Sequence[Chart], id: str) -> Iterator[_Series]:
    """Yield the measurements of the chart with this id, without values that are untried or unknown."""
    for chart in charts_with_id(charts, id):
        if isinstance(chart, Matrix):
            rows, columns = chart.rows, chart.columns
            marks = {
                (rows[mark.row], columns[mark.column]): mark.value
                for mark in chart.marks
                if mark.state != "unknown" and 0 <= mark.row < len(rows) and 0 <= mark.column < len(columns)
            }
            yield _Series(chart.title, chart.unit, _known_values(marks), _Grouping(_group_by_shape, " to ".join))
        elif isinstance(chart, Bars):
            bars = {(bar.group, bar.label): bar.value for bar in chart.bars}
            yield _Series(chart.title, chart.unit, _known_values(bars), _Grouping(_group_by_node, _label))
        elif isinstance(chart, Timeline):
            for phase, lasted in _phases(chart).items():
                yield _Series(f"{chart.title}: {phase}", "s", _known_values(lasted), _Grouping(_group_by_node, _label))


def _label(key: Key) -> str:
    return key[1]


def _phases(timeline: Timeline) -> dict[str, dict[Key, float]]:
    """Return the duration of each phase by rank, with phases in order of first appearance."""
    found: dict[str, dict[Key, float]] = {}
    for lane in timeline.lanes:
        for span in lane.spans:
            of_phase = found.setdefault(span.phase, {})
            key = (lane.node, lane.subject)
            of_phase[key] = of_phase.get(key, 0.0) + span.ended_s - span.began_s
    return found


def _known_values(values: Mapping[Key, float | None]) -> dict[Key, float]:
    return {key: float(value) for key, value in values.items() if value is not None and value > 0}


def _judge_series(quantity: _Quantity, was: _Series, later_series: _Series) -> Measured:
    both = {key: (was.values[key], value) for key, value in later_series.values.items() if key in was.values}
    missing, added = len(was.values) - len(both), len(later_series.values) - len(both)
    ratios = {
        key: earlier / later if quantity.more_is_better else later / earlier for key, (earlier, later) in both.items()
    }
    noise = noise_of(list(ratios.values()), quantity.limits)
    middle = statistics.median(ratios.values())
    least = quantity.least_s / _SECONDS[later_series.unit] if later_series.unit in _SECONDS else 0.0
    moved_keys = {key for key, (earlier, later) in both.items() if abs(later - earlier) >= least}
    of_fleet = {key for key in moved_keys if ratios[key] > noise.allowed}
    worse: list[Regression] = []
    usual = 1.0
    if len(ratios) > 2 and len(of_fleet) >= _FLEET * len(ratios):
        # Report the loss that all share, and in addition those that lost more than the others.
        worse.append(_regression((f"all {len(ratios)}", (), sorted(of_fleet)), later_series.grouping, both, ratios))
        usual = middle
    bad = {key for key in moved_keys if ratios[key] > noise.allowed * usual}
    worse.extend(
        _regression(group, later_series.grouping, both, ratios)
        for group in later_series.grouping.group_keys(sorted(ratios), bad)
    )
    better = sum(1 / ratio > noise.allowed and key in moved_keys for key, ratio in ratios.items())
    return Measured(
        quantity.id,
        later_series.title,
        later_series.unit,
        len(both),
        missing,
        added,
        _round(middle),
        noise,
        tuple(worse),
        better,
    )


def _regression(
    group: Group, grouping: _Grouping, both: Mapping[Key, tuple[float, float]], ratios: Mapping[Key, float]
) -> Regression:
    where, nodes, keys = group
    return Regression(
        where=where,
        nodes=nodes,
        subjects=tuple(map(grouping.format_subject, keys)),
        before=_round(statistics.median(both[key][0] for key in keys)),
        after=_round(statistics.median(both[key][1] for key in keys)),
        factor=_round(statistics.median(ratios[key] for key in keys)),
    )


def _group_by_shape(all_keys: Sequence[Key], bad_keys: Iterable[Key]) -> Iterator[Group]:
    """Group pairs by the row, column or node that explains them."""
    slow = set(bad_keys)
    words = {"inbound": "to {}", "outbound": "from {}", "isolated": "from and to {}", "around": "around {}"}
    cells = [Cell(*key, "way", None) for key in all_keys]
    for shape in shapes(cells, lambda cell: cell.pair in slow):
        keys = sorted({cell.pair for cell in shape.cells})
        if shape.kind == "pair":
            grouping = "{} and {}" if shape.mutual else "{} to {}"
            yield grouping.format(*keys[0]), shape.nodes, keys
        elif shape.kind == "everybody":
            yield f"all {len(keys)}", (), keys
        else:
            yield words[shape.kind].format(shape.node), shape.nodes, keys


def _group_by_node(all_keys: Sequence[Key], bad_keys: Iterable[Key]) -> Iterator[Group]:
    of_node = grouped((key[0], key) for key in sorted(bad_keys))
    for node, keys in of_node.items():
        labels = ", ".join(label for _, label in keys)
        where = f"{labels} on {node}" if node else labels
        yield where, (node,) if node else (), keys


def _round(value: float) -> float:
    """Return the value rounded to four digits: further digits are noise, and make numbers hard to compare."""
    return float(f"{value:.4g}")


#: The tables of node properties. Other tables hold measurements, which always differ.
DRIFT_TABLES = ("versions", "nodes")
#: Sizes of memory and disks may differ by this much between boots.
_SAME_SIZE = 0.02


def compare_tables(old: Sequence[Chart], new: Sequence[Chart]) -> tuple[Drift, ...]:
    """Return the differences by table and column; nodes with the same change share an entry."""
    return tuple(drift for id in DRIFT_TABLES for drift in _compare_table(old, new, id))


def charts_with_id(charts: Iterable[Chart], id: str) -> Iterator[Chart]:
    """Yield the charts with this id; if several jobs have one, the ids of the further charts end with a number."""
    for chart in charts:
        number = chart.id.removeprefix(f"{id}.")
        if chart.id == id or (number != chart.id and number.isdecimal()):
            yield chart


def _compare_table(old: Iterable[Chart], new: Iterable[Chart], id: str) -> Iterator[Drift]:
    """Compare one table; tables of several jobs are distinguished by their titles."""
    before = {table.title: table for table in charts_with_id(old, id) if isinstance(table, Table)}
    for table in charts_with_id(new, id):
        if isinstance(table, Table) and table.title in before:
            yield from _table_drift(before[table.title], table, id)


def _table_drift(old: Table, new: Table, id: str) -> Iterator[Drift]:
    before, after = _cells(old), _cells(new)
    keys = [(column, (row.subject, column.name)) for column in new.columns for row in new.rows]
    changes = grouped(
        ((column.name, _format_cell(before[key], column.unit), _format_cell(after[key], column.unit)), key[0])
        for column, key in keys
        if key in before and key in after and _differs(before[key], after[key])
    )
    for (what, was, now), subjects in changes.items():
        yield Drift(id, what, was, now, tuple(subjects))


def _cells(table: Table) -> dict[tuple[str, str], ChartCell]:
    return {
        (row.subject, column.name): cell
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=False)
    }


def _differs(before: ChartCell, after: ChartCell) -> bool:
    old, new = before.value, after.value
    if isinstance(old, float) or isinstance(new, float):
        numbers = [value for value in (old, new) if isinstance(value, (int, float))]
        if len(numbers) == 2:
            return abs(numbers[0] - numbers[1]) > _SAME_SIZE * max(abs(number) for number in numbers)
    return old != new


def _format_cell(cell: ChartCell, unit: str) -> str:
    if cell.value is None:
        return ""
    value = f"{cell.value:.4g}" if isinstance(cell.value, float) else str(cell.value)
    return f"{value} {unit}".rstrip()


def compare(
    old: Report, new: Report, *, names: tuple[str, str], fail_on: str = "", allow_incomplete: bool = False
) -> Difference:
    """Return the changes from the older report to the newer one.

    `names` are those of the reports. `fail_on` is the lowest severity that counts (empty: the newer report's); slower
    links and steps are warnings.
    """
    severity = Severity(fail_on or new.configuration.fail_on)
    appeared, gone, changed, unchanged = compare_findings(old, new, severity)
    became_unknown = tuple(_newly_undecided(old, new))
    became_known = tuple(_newly_undecided(new, old))
    measured = compare_measurements(old.charts, new.charts)
    nodes = tuple(_nodes(old, new))
    drift = (*_compare_versions(old, new), *compare_tables(old.charts, new.charts))
    slower = any(item.worse for item in measured) and Severity.WARNING.rank >= severity.rank
    worse = slower or any(item.counts for item in appeared) or any(item.counts for item in changed)
    has_unknown = any(item.required for item in became_unknown) or any(item.move is NodeMove.SILENT for item in nodes)
    answer = _answer(
        worse=worse, has_unknown=has_unknown, better=_is_better(gone, changed), appeared=appeared, measured=measured
    )
    return Difference(
        old=_summarize(old, names[0]),
        new=_summarize(new, names[1]),
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


def _is_better(gone: Iterable[GoneFinding], changed: Iterable[ChangedFinding]) -> bool:
    return any(not item.unknown_because for item in gone) or any(
        item.after.severity.rank < item.before.severity.rank for item in changed
    )


def _exit_code(answer: Answer, *, allow_incomplete: bool) -> int:
    if answer is Answer.WORSE:
        return ExitCode.NO_GO
    return ExitCode.INCOMPLETE if answer is Answer.UNKNOWN and not allow_incomplete else ExitCode.GO


def _summarize(report: Report, name: str) -> ReportSummary:
    run = report.run
    return ReportSummary(
        name, run.verb, run.created, report.tool.version, report.verdict.value, len(report.nodes), len(report.findings)
    )


def _newly_undecided(known: Report, has_unknown: Report) -> Iterator[OutcomeChange]:
    """Yield, by rule or check and reason, what one report decided and the other could not."""
    knows = {outcome.id for outcome in known.outcomes if outcome.status is not Status.UNKNOWN}
    before = {(outcome.id, without_lines(outcome.subject)) for outcome in _unknown_outcomes(known)}
    found = grouped(
        ((outcome.id, outcome.reason, outcome.required), outcome)
        for outcome in _unknown_outcomes(has_unknown)
        if outcome.id in knows and (outcome.id, without_lines(outcome.subject)) not in before
    )
    for (id, reason, required), several in sorted(found.items(), key=lambda item: (not item[0][2], item[0])):
        subjects = tuple(sorted({outcome.subject for outcome in several}))
        yield OutcomeChange(id, several[0].name, subjects, reason, required)


def _unknown_outcomes(report: Report) -> Iterator[Outcome]:
    return (outcome for outcome in report.outcomes if outcome.status is Status.UNKNOWN)


def _nodes(old: Report, new: Report) -> Iterator[NodeChange]:
    before = {record.node.name: record.problem for record in old.nodes}
    after = {record.node.name: record.problem for record in new.nodes}
    if not before or not after:
        # One report is of a lint, or of a run without nodes, which is not a change of nodes.
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


def _compare_versions(old: Report, new: Report) -> Iterator[Drift]:
    """Yield changes of preflight and its packs, because another version may check more."""
    if old.tool.version != new.tool.version:
        yield Drift("tool", new.tool.name, old.tool.version, new.tool.version)
    before, after = packs(old), packs(new)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield Drift("tool", name, before.get(name, ""), after.get(name, ""))


def _notes(old: Report, new: Report) -> Iterator[str]:
    """Yield notes on differences between the runs that make their reports less comparable."""
    if old.run.verb != new.run.verb:
        yield (
            f"the older report is of `{old.run.verb}`, the newer one of `{new.run.verb}`, and these check "
            "different things"
        )
    for what, before, after in (
        ("profile", old.configuration.profile, new.configuration.profile),
        ("selection", old.configuration.select, new.configuration.select),
        ("executor", old.run.executor, new.run.executor),
        ("job context", old.run.context, new.run.context),
    ):
        if before != after and old.run.verb == new.run.verb:
            yield f"the {what} differs: {_format_value(before)} before, {_format_value(after)} now"
    faults = [report.run.smoke_options.injected_fault for report in (old, new)]
    if any(faults):
        which = "both reports" if all(faults) else "the older report" if faults[0] else "the newer report"
        yield f"{which} has an injected fault (--inject-fault), so the difference may be that fault"
    if bool(old.charts) != bool(new.charts) and old.nodes and new.nodes:
        which = "older" if new.charts else "newer"
        yield f"the {which} report has no measurements, so versions and speeds are not compared"


def _format_value(value: str | tuple[str, ...]) -> str:
    return (value if isinstance(value, str) else ",".join(value)) or "none"


def report_in(path: Path, judge: Callable[[Recording], Report]) -> Report:
    """Return the report in a file, without its jobs; a recording is judged first. Raises UsageError."""
    try:
        data = regular_file.read(path, MAX_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    document = _document(data)
    kind = _kind(document) if document is not None else ""
    if document is not None and kind == "report":
        return _report(document, path)
    if kind:
        raise UsageError(f"{path} is {kind}; expected a report (`-o json:report.json`) or a recording (`--save`)")
    try:
        recording = load(data, to_judge=True)
    except ValueError as error:
        raise UsageError(
            f"{path} is neither a report (`-o json:report.json`) nor a recording (`--save`): {error}"
        ) from None
    return judge(recording)


def _document(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the file; None if it is certainly a recording, which is then read only once."""
    if b'"claims"' in data and b'"coverage"' not in data:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _kind(document: dict[str, Any]) -> str:
    """Return the kind of one of our JSON documents; empty for a recording or an unknown object."""
    if "coverage" in document and "outcomes" in document:
        return "report"
    if "runs" in document and "$schema" in document:
        return "a SARIF log, which lacks some of the compared data"
    if "answer" in document and "logs" in document:
        return "a diagnosis"
    if "answer" in document and "appeared" in document:
        return "a comparison"
    if {*document} == {"schema_version", "findings"}:
        return "a baseline"
    return ""


def _report(document: dict[str, Any], path: Path) -> Report:
    version = document.get("schema_version")
    if version != reports.SCHEMA_VERSION:
        known = reports.SCHEMA_VERSION
        raise UsageError(f"the report {path} has schema version {version!r}; this preflight reads version {known}")
    try:
        read = reports.adapter().validate_python({**document, "jobs": ()})
    except ValueError as error:
        raise UsageError(
            f"{path} is not a report that this version of preflight can read: {format_errors(error)}"
        ) from None
    assert isinstance(read, Report)
    return read


Pair = tuple[Finding, Finding]


def compare_findings(
    old: Report, new: Report, fail_on: Severity
) -> tuple[tuple[NewFinding, ...], tuple[GoneFinding, ...], tuple[ChangedFinding, ...], int]:
    """Return new, fixed and changed findings, and the number of unchanged ones, without those suppressed in both."""
    before_it, after_it = _Coverage(old, new), _Coverage(new, old)
    pairs, left, right = match_findings((*old.findings, *old.suppressed), (*new.findings, *new.suppressed))
    counted = {id(finding) for finding in (*old.findings, *new.findings)}
    changed, unchanged = [], 0
    for before, after in pairs:
        if id(before) not in counted and id(after) not in counted:
            continue
        what = _describe_changes(before, after)
        if not what:
            unchanged += 1
            continue
        worse = id(after) in counted and _is_worse(before, after, id(before) in counted)
        counts = worse and after.severity.rank >= fail_on.rank
        unseen = after_it.unseen(before, {*before.nodes} - {*after.nodes})
        changed.append(ChangedFinding(before, after, what, worse, counts, unseen))
    appeared = tuple(
        NewFinding(finding, finding.severity.rank >= fail_on.rank, before_it.why_unknown(finding, "the older report"))
        for finding in right
        if id(finding) in counted
    )
    gone = tuple(
        GoneFinding(finding, after_it.why_unknown(finding, "the newer report"))
        for finding in left
        if id(finding) in counted
    )
    return appeared, gone, tuple(changed), unchanged


def match_findings(old: Sequence[Finding], new: Sequence[Finding]) -> tuple[list[Pair], list[Finding], list[Finding]]:
    """Return pairs of the same finding, and the findings of only one side, in the order of each side.

    Lines with the same text share a fingerprint: those at the same position are paired first. The fingerprint of a
    node finding contains its nodes; remaining findings of one check are paired if they share nodes.
    """
    left, right = dict(enumerate(old)), dict(enumerate(new))
    pairs: dict[int, Pair] = {}

    def pair(one: int, other: int) -> None:
        pairs[other] = (left.pop(one), right.pop(other))

    for key in (_exact_key, _fingerprint_key):
        waiting = grouped((key(finding), number) for number, finding in left.items())
        for other in list(right):
            same = waiting.get(key(right[other]))
            if same:
                pair(same.pop(0), other)
    of_check = grouped(
        (finding.id, number) for number, finding in left.items() if finding.nodes and not finding.locations
    )
    for other in [number for number, finding in right.items() if finding.nodes and not finding.locations]:
        candidates = [number for number in of_check.get(right[other].id, ()) if number in left]
        nodes = {*right[other].nodes}
        most, number = max(((len(nodes & {*left[one].nodes}), -one) for one in candidates), default=(0, 0))
        if most:
            pair(-number, other)
    return [pairs[number] for number in sorted(pairs)], list(left.values()), list(right.values())


def packs(report: Report) -> dict[str, str]:
    """Return the versions, by name, of the packs with which a report was made."""
    return {name: version for name, _, version in (label.partition(" ") for label in report.tool.plugins)}


def _exact_key(finding: Finding) -> object:
    return (_fingerprint_key(finding), finding.locations[:1], finding.subject)


def _fingerprint_key(finding: Finding) -> object:
    """Return the fingerprint without the number that distinguishes equal lines."""
    return finding.fingerprint.partition(":")[0]


def _describe_changes(before: Finding, after: Finding) -> tuple[str, ...]:
    differs = {
        "severity": before.severity is not after.severity,
        "message": before.message != after.message,
        "place": [_place(before)] != [_place(after)],
        "nodes": {*before.nodes} != {*after.nodes},
        "suppression": bool(before.suppression) != bool(after.suppression),
    }
    return tuple(name for name, held in differs.items() if held)


def _place(finding: Finding) -> tuple[str, int, int] | None:
    first = finding.locations[0] if finding.locations else None
    return (first.path, first.line, first.column) if first is not None else None


def _is_worse(before: Finding, after: Finding, counted_before: bool) -> bool:
    more_severe = after.severity.rank > before.severity.rank
    return more_severe or not counted_before or bool({*after.nodes} - {*before.nodes})


class _Coverage:
    """The checks that a report could decide, so that a missing finding is not mistaken for a fixed one."""

    def __init__(self, report: Report, new: Report) -> None:
        self._report, self._other = report, new
        self._stage = {outcome.id: outcome.stage for outcome in new.outcomes}
        self._checked = {outcome.id for outcome in report.outcomes if outcome.status is not Status.UNKNOWN}
        self._unknown_outcomes = grouped((outcome.id, outcome) for outcome in _unknown_outcomes(report))
        self._read = {file.path for file in report.inputs}
        self._records = {record.node.name: record for record in report.nodes}

    def why_unknown(self, finding: Finding, report_name: str) -> str:
        """Return why this report would not show the finding even if the fault existed; empty if it would."""
        unknown = self._unknown_outcomes.get(finding.id, [])
        if finding.id not in self._checked and not unknown and not self._did_run(finding):
            return f"{report_name} did not check this"
        if finding.locations and finding.locations[0].path not in self._read:
            return f"{report_name} did not read {finding.locations[0].path}"
        for node in self._unreached_reason(finding.nodes):
            record = self._records.get(node)
            if record is None:
                return f"{report_name} does not have node {node}"
            return f"{report_name} could not check {node}: {record.problem}"
        about = _undecided_about(unknown, finding)
        if about is None and unknown and finding.id not in self._checked:
            about = unknown[0]
        return f"{report_name} could not decide this: {about.reason}" if about is not None else ""

    def unseen(self, finding: Finding, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return the nodes among `nodes` that were not checked, or for which the check was undecided."""
        nodes = sorted(nodes)
        unknown = {word for outcome in self._unknown_outcomes.get(finding.id, []) for word in _subject_words(outcome)}
        unreached = self._unreached_reason(nodes)
        return tuple(node for node in nodes if node in unknown or node in unreached)

    def _unreached_reason(self, nodes: Iterable[str]) -> list[str]:
        reached = {name for name, record in self._records.items() if not record.problem}
        return [node for node in nodes if node not in reached]

    def _did_run(self, finding: Finding) -> bool:
        """Return whether a rule or check without outcomes ran: many have no outcomes if nothing is wrong."""
        report, configuration = self._report, self._report.configuration
        if {*packs(self._other)} - {*packs(report)}:
            return False
        stage = self._stage.get(finding.id, "lint")
        ran = {record.name for record in report.run.stages if not record.skipped}
        if report.run.verb == SMOKE if stage == "lint" else stage not in ran:
            return False
        if matches(finding.id, finding.name, configuration.mandatory):
            return True
        profiles = [PROFILES.index(old.configuration.profile) for old in (report, self._other)]
        chosen = not configuration.select or matches(finding.id, finding.name, configuration.select)
        return chosen and not matches(finding.id, finding.name, configuration.ignore) and profiles[0] >= profiles[1]


def _undecided_about(unknown: Iterable[Outcome], finding: Finding) -> Outcome | None:
    """Return the undecided outcome about the same subject or one of its nodes."""
    subject, nodes = without_lines(finding.subject), {*finding.nodes}
    return next((o for o in unknown if without_lines(o.subject) == subject or _subject_words(o) & nodes), None)


def _subject_words(outcome: Outcome) -> set[str]:
    """Return the words of the subject of an outcome: `GPUs of node1, node2` names two nodes."""
    return {word.strip(",:") for word in outcome.subject.split()}
