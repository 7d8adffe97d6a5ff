"""Compares what two reports measured: links and ranks, and tables of node properties."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight._util.sequences import grouped
from preflight.analysis.link_matrix import Cell, shapes
from preflight.commands.diff.difference import Drift, Measured, Noise, Regression
from preflight.model.charts import Bars, Chart, Matrix, Table, Timeline
from preflight.model.charts import Cell as ChartCell

#: With fewer ratios than this their scatter is meaningless.
MIN_RATIOS = 8
#: Number of deviations that counts as noise; in a normal distribution one in 16,000 values is beyond.
DEVIATIONS = 4.0
#: Converts the median deviation of a normal distribution into its standard deviation.
_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the limit, whatever the scatter.

    Args:
        floor: smaller factors are never reported, because two good measurements of one link differ as much.
        ceiling: larger factors are always reported; also the limit if there are too few ratios to know their scatter.
    """

    floor: float
    ceiling: float


def noise_of(ratios: Sequence[float], limits: Limits) -> Noise:
    """Return the noise in `ratios`, each of which is the factor by which one measurement became worse.

    The scatter is the median absolute deviation of their logarithms: faults do not widen it as long as they are fewer
    than half.
    """
    if len(ratios) < MIN_RATIOS:
        why = f"too few to know how much they scatter; more than a factor of {limits.ceiling:g} is reported"
        return Noise(len(ratios), None, limits.ceiling, why)
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.median(logs)
    spread = math.exp(_TO_DEVIATION * statistics.median(abs(value - middle) for value in logs))
    # Compared as logarithms, because the factor itself may overflow.
    wanted = DEVIATIONS * math.log(spread)
    basis = f"the fleet's ratios scatter by a factor of {spread:.3g} (median absolute deviation of {len(ratios)})"
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
#: Keys with what explains them: in words, and as nodes.
Group = tuple[str, tuple[str, ...], list[Key]]
#: If this share of all got worse by more than the noise, the whole fleet got worse.
_FLEET = 0.75
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6}


@dataclass(frozen=True, slots=True)
class _Quantity:
    """A chart that is compared. `least_s`: smaller time differences are not reported, however large their factor.

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
    """How the keys of one kind of chart are grouped and named."""

    grouped: Callable[[Sequence[Key], Iterable[Key]], Iterator[Group]]
    format_subject: Callable[[Key], str]


@dataclass(frozen=True, slots=True)
class _Series:
    """One series of measurements of a report. Each phase of a timeline is one."""

    title: str
    unit: str
    values: Mapping[Key, float]
    grouping: _Grouping


def compare_measurements(old: Sequence[Chart], new: Sequence[Chart]) -> tuple[Measured, ...]:
    """Return every quantity that both reports measured for at least one link or rank."""
    return tuple(_measured(old, new))


def _measured(old: Sequence[Chart], new: Sequence[Chart]) -> Iterator[Measured]:
    for quantity in QUANTITIES:
        before = {(series.title, series.unit): series for series in _all_series(old, quantity.id)}
        for now in _all_series(new, quantity.id):
            was = before.get((now.title, now.unit))
            if was is not None and {*was.values} & {*now.values}:
                yield _judged(quantity, was, now)


def _all_series(charts: Sequence[Chart], id: str) -> Iterator[_Series]:
    """Return what the chart with this id measured, without what was not tried or is unknown."""
    for chart in of_id(charts, id):
        if isinstance(chart, Matrix):
            rows, columns = chart.rows, chart.columns
            marks = {
                (rows[mark.row], columns[mark.column]): mark.value
                for mark in chart.marks
                if mark.state != "unknown" and 0 <= mark.row < len(rows) and 0 <= mark.column < len(columns)
            }
            yield _Series(chart.title, chart.unit, _known(marks), _Grouping(_by_shape, " to ".join))
        elif isinstance(chart, Bars):
            bars = {(bar.group, bar.label): bar.value for bar in chart.bars}
            yield _Series(chart.title, chart.unit, _known(bars), _Grouping(_by_node, _label))
        elif isinstance(chart, Timeline):
            for phase, lasted in _phases(chart).items():
                yield _Series(f"{chart.title}: {phase}", "s", _known(lasted), _Grouping(_by_node, _label))


def _label(key: Key) -> str:
    return key[1]


def _phases(timeline: Timeline) -> dict[str, dict[Key, float]]:
    """Return how long each phase lasted, by rank, in the order in which the phases first occur."""
    found: dict[str, dict[Key, float]] = {}
    for lane in timeline.lanes:
        for span in lane.spans:
            of_phase = found.setdefault(span.phase, {})
            key = (lane.node, lane.subject)
            of_phase[key] = of_phase.get(key, 0.0) + span.ended_s - span.began_s
    return found


def _known(values: Mapping[Key, float | None]) -> dict[Key, float]:
    return {key: float(value) for key, value in values.items() if value is not None and value > 0}


def _judged(quantity: _Quantity, was: _Series, now: _Series) -> Measured:
    both = {key: (was.values[key], value) for key, value in now.values.items() if key in was.values}
    missing, added = len(was.values) - len(both), len(now.values) - len(both)
    ratios = {
        key: earlier / later if quantity.more_is_better else later / earlier for key, (earlier, later) in both.items()
    }
    noise = noise_of(list(ratios.values()), quantity.limits)
    middle = statistics.median(ratios.values())
    least = quantity.least_s / _SECONDS[now.unit] if now.unit in _SECONDS else 0.0
    moved = {key for key, (earlier, later) in both.items() if abs(later - earlier) >= least}
    of_fleet = {key for key in moved if ratios[key] > noise.allowed}
    worse: list[Regression] = []
    usual = 1.0
    if len(ratios) > 2 and len(of_fleet) >= _FLEET * len(ratios):
        # The common loss of all, and in addition only those that lost more than the others.
        worse.append(_regression((f"all {len(ratios)}", (), sorted(of_fleet)), now.grouping, both, ratios))
        usual = middle
    bad = {key for key in moved if ratios[key] > noise.allowed * usual}
    worse.extend(_regression(group, now.grouping, both, ratios) for group in now.grouping.grouped(sorted(ratios), bad))
    better = sum(1 / ratio > noise.allowed and key in moved for key, ratio in ratios.items())
    return Measured(
        quantity.id, now.title, now.unit, len(both), missing, added, _rounded(middle), noise, tuple(worse), better
    )


def _regression(
    group: Group, grouping: _Grouping, both: Mapping[Key, tuple[float, float]], ratios: Mapping[Key, float]
) -> Regression:
    where, nodes, keys = group
    return Regression(
        where=where,
        nodes=nodes,
        subjects=tuple(map(grouping.format_subject, keys)),
        before=_rounded(statistics.median(both[key][0] for key in keys)),
        after=_rounded(statistics.median(both[key][1] for key in keys)),
        factor=_rounded(statistics.median(ratios[key] for key in keys)),
    )


def _by_shape(every: Sequence[Key], bad: Iterable[Key]) -> Iterator[Group]:
    """Group pairs by the row, column or node that explains them."""
    slow = set(bad)
    words = {"inbound": "to {}", "outbound": "from {}", "isolated": "from and to {}", "around": "around {}"}
    cells = [Cell(*key, "way", None) for key in every]
    for shape in shapes(cells, lambda cell: cell.pair in slow):
        keys = sorted({cell.pair for cell in shape.cells})
        if shape.kind == "pair":
            grouping = "{} and {}" if shape.mutual else "{} to {}"
            yield grouping.format(*keys[0]), shape.nodes, keys
        elif shape.kind == "everybody":
            yield f"all {len(keys)}", (), keys
        else:
            yield words[shape.kind].format(shape.node), shape.nodes, keys


def _by_node(every: Sequence[Key], bad: Iterable[Key]) -> Iterator[Group]:
    """Group ranks by their node."""
    of_node = grouped((key[0], key) for key in sorted(bad))
    for node, keys in of_node.items():
        labels = ", ".join(label for _, label in keys)
        where = f"{labels} on {node}" if node else labels
        yield where, (node,) if node else (), keys


def _rounded(value: float) -> float:
    """Round to four digits: more are noise, and make numbers hard to compare."""
    return float(f"{value:.4g}")


#: The tables of node properties. Other tables hold measurements, which always differ.
DRIFT_TABLES = ("versions", "nodes")
#: Sizes of memory and disks may differ by this much between boots.
_SAME_SIZE = 0.02


def compare_tables(old: Sequence[Chart], new: Sequence[Chart]) -> tuple[Drift, ...]:
    """Return what differs, by table and column; nodes with the same change share an entry."""
    return tuple(drift for id in DRIFT_TABLES for drift in _of_table(old, new, id))


def of_id(charts: Iterable[Chart], id: str) -> Iterator[Chart]:
    """Return the charts with this id; if several jobs have one each, the others have a number after it."""
    for chart in charts:
        number = chart.id.removeprefix(f"{id}.")
        if chart.id == id or (number != chart.id and number.isdecimal()):
            yield chart


def _of_table(old: Iterable[Chart], new: Iterable[Chart], id: str) -> Iterator[Drift]:
    """Compare one table; tables of several jobs are distinguished by their titles."""
    before = {table.title: table for table in of_id(old, id) if isinstance(table, Table)}
    for table in of_id(new, id):
        if isinstance(table, Table) and table.title in before:
            yield from _table_drift(before[table.title], table, id)


def _table_drift(old: Table, new: Table, id: str) -> Iterator[Drift]:
    before, after = _cells(old), _cells(new)
    found: dict[tuple[str, str, str], list[str]] = {}
    for column in new.columns:
        for row in new.rows:
            key = (row.subject, column.name)
            if key in before and key in after and _differs(before[key], after[key]):
                change = (column.name, _format_cell(before[key], column.unit), _format_cell(after[key], column.unit))
                found.setdefault(change, []).append(row.subject)
    for (what, was, now), subjects in found.items():
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
