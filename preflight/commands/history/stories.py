"""Patterns across several runs, by robust statistics: nodes that fail again and again, and counters that grow faster
than on their peers.

Median and MAD: F. R. Hampel, "The influence curve and its role in robust estimation", 1974. Slope: P. K. Sen,
"Estimates of the regression coefficient based on Kendall's tau", 1968.

A fault that more than a tenth of the nodes share in a run is not a failure of any of them. The other faults are counted
in stretches: a node that fails in three runs in a row failed once. A node fails again and again if its number of
stretches has a chance below one in a hundred for the whole fleet, at the rate at which the other nodes fail (binomial).

The growth of a counter between two runs is unusual if it exceeds 99 % of those of the other nodes. A node is a story if
its growth is unusual in so many runs that chance would not do it once in a hundred fleets (binomial), and if it grew in
total three times as much as 98 % of its peers (with fewer than 16 of them ten times, and by 30): old parts err more
often than new ones, all their life. One burst is one run, however large. After a restart counting begins at 0.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from preflight._util.sequences import deviation_from, grouped
from preflight.commands.history.past import Failure, Past, Series

#: The standard error of a median, compared with that of a mean.
OF_A_MEDIAN = 1.2533

Point = tuple[int, float]


def spread(values: Sequence[float]) -> float:
    """Return the deviation of the values from their median; 0 without values."""
    return deviation_from(median(values), values) if values else 0.0


def noise(values: Sequence[float]) -> float:
    """Return the deviation of a series from run to run. A trend or a step does not increase it."""
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    return deviation_from(0.0, steps) / math.sqrt(2) if steps else 0.0


def tail_probability(count: int, of: int, chance: float) -> float:
    """Return the probability of at least `count` successes in `of` trials with probability `chance` each."""
    if count <= 0 or chance >= 1.0:
        return 1.0
    if chance <= 0.0:
        return 0.0
    first = math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
    term = math.exp(first + count * math.log(chance) + (of - count) * math.log1p(-chance))
    total = 0.0
    for k in range(count, of + 1):
        total += term
        term *= (of - k) / (k + 1) * chance / (1 - chance)
    return min(1.0, total)


@dataclass(frozen=True, slots=True)
class Slope:
    """The slope of a series by Theil and Sen, with its 95 % interval, in units per step of x."""

    value: float
    low: float
    high: float


def theil_sen(points: Sequence[Point]) -> Slope:
    """Return the median of the slopes between all pairs of points. Needs points with at least two different x."""
    slopes = sorted(
        (later - earlier) / (x2 - x1)
        for number, (x1, earlier) in enumerate(points)
        for x2, later in points[number + 1 :]
        if x2 != x1
    )
    n = len(points)
    # Sen's interval: the variance of Kendall's statistic gives the ranks of its ends.
    half = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18) / 2
    low = max(0, math.floor(len(slopes) / 2 - half))
    high = min(len(slopes) - 1, math.ceil(len(slopes) / 2 + half))
    return Slope(median(slopes), slopes[low], slopes[high])


@dataclass(frozen=True, slots=True)
class Shape:
    """The way a series changed: at the point `at`, in one step or slowly; `before` and `after` are its levels.

    `error` is the sum of absolute deviations from this shape.
    """

    at: int
    is_step: bool
    before: float
    after: float
    error: float


def step_error(values: Sequence[float], at: int) -> float:
    """Return the sum of absolute deviations from a step at the point `at`."""
    sides = [side for side in (values[:at], values[at:]) if side]
    return sum(abs(value - middle) for side in sides for middle in (median(side),) for value in side)


def shape_of(values: Sequence[float], *, least_nodes: int = 3) -> Shape:
    """Return the step or slope that fits best (least absolute deviations); needs at least `2 * least` values."""
    count = len(values)
    best_step, best_ramp = (math.inf, least_nodes, 0.0, 0.0), (math.inf, 0, 0.0, 0.0)
    for at in range(least_nodes, count - least_nodes + 1):
        error = step_error(values, at)
        if error < best_step[0]:
            best_step = (error, at, median(values[:at]), median(values[at:]))
    for at in range(count - 2 * least_nodes + 1):
        before = median(values[: max(at, least_nodes)])
        rest = [(place + 0.5, value) for place, value in enumerate(values[at:])]
        # Near its start a slope is lost in the noise; the later half of its points determines its steepness.
        slope = median([(value - before) / place for place, value in rest[len(rest) // 2 :]])
        error = sum(abs(v - before) for v in values[:at])
        error += sum(abs(v - before - slope * place) for place, v in rest)
        if error < best_ramp[0]:
            best_ramp = (error, at, before, before + slope * (count - at))
    if best_step[0] <= best_ramp[0]:
        return Shape(best_step[1], True, best_step[2], best_step[3], best_step[0])
    return Shape(best_ramp[1], False, best_ramp[2], best_ramp[3], best_ramp[0])


def known_points(values: Iterable[float | None]) -> list[Point]:
    """Return the known values, each with its position."""
    return [(place, value) for place, value in enumerate(values) if value is not None]


Kind = Literal["fails-again", "down", "drift", "step", "outlier", "shared-step", "after-change", "all-nodes", "counter"]


@dataclass(frozen=True, slots=True)
class Story:
    """A pattern on some nodes.

    Args:
        kind: `fails-again`: fails, recovers and fails; `down`: fails in every run since; `drift`: a measurement changes
            slowly; `step`: it changed at once; `outlier`: it was always worse than that of equal nodes; `shared-step`:
            it changed at once on several nodes; `after-change`: it got worse when a driver or the like changed;
            `all-nodes`: it got worse on all nodes of a model; `counter`: a counter grows.
        nodes: the nodes with the pattern.
        quantities: those that got worse; empty for failures.
        since: the time of the run where it began; for `fails-again`, of the last failure.
        change: of the first quantity, as a share of its value or in its unit; null for failures.
        message: the story in one sentence.
        forecast: the expected consequence if it continues; empty if the data do not support a forecast.
    """

    kind: Kind
    nodes: tuple[str, ...]
    quantities: tuple[str, ...]
    since: str
    change: float | None
    message: str
    forecast: str

    def __post_init__(self) -> None:
        if self.change is not None:
            object.__setattr__(self, "change", float(f"{self.change:.4g}"))


def overlap(first: Iterable[object], second: Iterable[object]) -> float:
    """Return the share of two sets that both contain."""
    one, other = set(first), set(second)
    return len(one & other) / len(one | other) if one | other else 1.0


def join_words(words: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "")))


#: Probability of one wrong story in the whole fleet.
DOUBT = 0.01
#: Smallest number of failure stretches, and of runs in a row, for a story.
MIN_STRETCHES, MIN_DOWN = 3, 3
#: A fault on more than this share of a run's nodes has a cause outside the nodes.
SHARED = 0.1
#: A node that fails again and again fails at least this many times as often as the others.
FACTOR = 4.0
_ALIKE = 0.7


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a node over all runs.

    `failures` are stretches of the runs in `failed_in` in which it failed by itself; `healthy_since` is the first of
    the passing runs that lead to the newest. Times between failures are null with fewer than two.
    """

    node: str
    state: str
    runs: int
    failures: int
    failed_in: tuple[int, ...]
    healthy_since: int | None
    mean_time_between_failures_s: float | None


def own_failures(past: Past) -> dict[str, list[Failure]]:
    """Return the failures of each node that the other nodes of the run do not share."""
    present = [0] * len(past.runs)
    for states in past.states.values():
        for run, state in enumerate(states):
            present[run] += state is not None
    together = Counter((item.run, item.rule) for item in {(f.run, f.rule, f.node): f for f in past.failures}.values())
    own = (f for f in past.failures if together[f.run, f.rule] <= max(1.0, SHARED * present[f.run]))
    return grouped((item.node, item) for item in own)


def health_of(past: Past, own: Mapping[str, Sequence[Failure]]) -> dict[str, Health]:
    """Return the health of every node by name."""
    health_by_node = {}
    for node, states in past.states.items():
        examined = [run for run, state in enumerate(states) if state is not None]
        failed = {item.run for item in own.get(node, ())}
        stretches, before = 0, False
        for run in examined:
            # An undecided run neither ends nor begins a stretch.
            if states[run] == "unknown":
                continue
            stretches += run in failed and not before
            before = run in failed
        since = None
        for run in reversed(examined):
            if states[run] != "passing":
                break
            since = run
        health_by_node[node] = Health(
            node,
            states[examined[-1]] or "",
            len(examined),
            stretches,
            tuple(sorted(failed)),
            since,
            _between(past, examined, failed, stretches),
        )
    return health_by_node


def _between(past: Past, examined: Sequence[int], failed: set[int], stretches: int) -> float | None:
    if stretches < 2:
        return None
    observed = past.runs[examined[-1]].began - past.runs[examined[0]].began
    return observed * (len(examined) - len(failed)) / len(examined) / stretches


def failing_nodes(past: Past, own: Mapping[str, Sequence[Failure]], health: Mapping[str, Health]) -> Iterator[Story]:
    """Yield the stories of nodes that fail again and again, and of nodes that fail in all of the latest runs."""
    down = {node: runs for node in past.nodes if len(runs := _failed_runs(past, health[node])) >= MIN_DOWN}
    others = [item for node, item in health.items() if node not in down]
    rate = (sum(len(item.failed_in) for item in others) + 1) / (sum(item.runs for item in others) + 1)
    down = {node: runs for node, runs in down.items() if rate ** len(runs) * len(health) < DOUBT}
    again = _repeat_failures(health)
    for nodes in _group_by_runs({node: health[node].failed_in for node in again}):
        last = max(health[nodes[0]].failed_in)
        item = health[nodes[0]]
        reasons = Counter(
            failure.name or failure.rule or "no answer"
            for failure in {(f.run, f.rule): f for f in own[nodes[0]]}.values()
        )
        why = join_words(
            [f"{name} ({count})" for name, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))[:3]]
        )
        text = f"failed in {item.failures} separate periods of {item.runs} runs: {why}"
        if len(nodes) > 1:
            text = f"fail in the same runs, in {item.failures} separate periods of {item.runs}: {why}"
        yield Story("fails-again", nodes, (), past.time_of(last), None, text, "")
    for runs in sorted(set(down.values())):
        nodes = tuple(node for node in sorted(down) if down[node] == runs)
        last_of = {node: max(own[node], key=lambda item: item.run) for node in nodes}
        for message in sorted({item.name or item.message for item in last_of.values()}):
            some = tuple(node for node in nodes if (last_of[node].name or last_of[node].message) == message)
            seen = f"in each of the last {len(runs)} runs that examined {'it' if len(some) == 1 else 'them'}: {message}"
            yield Story("down", some, (), past.time_of(runs[0]), None, f"failed {seen}", "")


def _failed_runs(past: Past, health: Health) -> tuple[int, ...]:
    """Return the latest runs in which only this node failed, without a passing run in between."""
    failed_runs: list[int] = []
    failed = set(health.failed_in)
    for run in reversed(range(len(past.runs))):
        state = past.states[health.node][run]
        if state is None or state == "unknown":
            continue
        if run not in failed:
            break
        failed_runs.append(run)
    return tuple(reversed(failed_runs))


def _repeat_failures(health: Mapping[str, Health]) -> list[str]:
    """Return the nodes that fail more often than chance allows, at the rate of the nodes not found so far."""
    nodes: set[str] = set()
    for _ in range(4):
        others = [item for node, item in health.items() if node not in nodes]
        runs = sum(item.runs for item in others)
        # At least one failure is assumed, so that the first failure of a perfect fleet does not count as proof.
        rate = (sum(item.failures for item in others) + 1) / (runs + 1)
        before = set(nodes)
        for node, item in health.items():
            if item.failures < max(MIN_STRETCHES, FACTOR * rate * item.runs):
                continue
            if tail_probability(item.failures, item.runs, rate) * len(health) < DOUBT:
                nodes.add(node)
        if nodes == before:
            break
    return sorted(nodes)


def _group_by_runs(runs_of: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, ...]]:
    """Yield groups of nodes that fail in the same runs."""
    left = dict(runs_of)
    while left:
        first = next(iter(left))
        same = tuple(node for node, runs in left.items() if overlap(left[first], runs) >= _ALIKE)
        for node in same:
            del left[node]
        yield same


MIN_UNUSUAL = 3
_USUAL, _MUCH = 0.99, 0.98
_BURST = 5.0
GROWTH_FACTOR, _FEW_FACTOR = 3.0, 10.0
_MANY, _FEW_LEAST = 16, 3.0
#: A counter without unusual growth for this share of the runs has stopped.
_STOPPED = 0.25
#: With fewer nodes than this, a node's own growth would define what is usual.
_SMALL = 100

Growth = list[tuple[int, float]]


def growth_of(values: Sequence[float | None]) -> Growth:
    """Return the growth of a counter between consecutive runs, by the later run."""
    points = [(run, value) for run, value in enumerate(values) if value is not None]
    return [
        (run, value - before if value >= before else value) for (_, before), (run, value) in itertools.pairwise(points)
    ]


def growing_counters(past: Past, groups: Mapping[str, Sequence[str]]) -> Iterator[Story]:
    """Yield one story per node with growing counters."""
    counters = [series for series in past.series.values() if series.quantity.kind == "counter"]
    counters_by_node = grouped(
        (node, (series.quantity, total, since, runs))
        for series in counters
        for nodes in groups.values()
        for node, total, since, runs in _growing_nodes(series, nodes, len(past.runs))
    )
    for node in sorted(counters_by_node):
        parts = [
            f"{quantity.title}: {total:.0f} more in {runs} runs" for quantity, total, _, runs in counters_by_node[node]
        ]
        names = tuple(quantity.name for quantity, _, _, _ in counters_by_node[node])
        since = past.time_of(min(item[2] for item in counters_by_node[node]))
        message = f"counts grow, unlike those of comparable nodes: {join_words(parts)}"
        yield Story("counter", (node,), names, since, counters_by_node[node][0][1], message, "")


def _growing_nodes(series: Series, nodes: Sequence[str], runs: int) -> Iterator[tuple[str, float, int, int]]:
    """Yield each node with growing counters: its growth in unusual runs, the first of these runs, and their number."""
    growth = {node: growth_of(series.values[node]) for node in nodes if node in series.values}
    growth = {node: rows for node, rows in growth.items() if rows}
    if not any(value for rows in growth.values() for _, value in rows):
        return
    pooled = sorted(value for rows in growth.values() for _, value in rows)
    limits = {node: _limit(pooled if len(growth) >= _SMALL else _peer_growth(growth, node)) for node in growth}
    unusual = {node: [(run, value) for run, value in growth[node] if value > limits[node][0]] for node in growth}
    # A burst counts at most as a few usual values.
    totals = {
        node: sum(min(value, _BURST * (1 + limits[node][0])) for _, value in rows) for node, rows in growth.items()
    }
    ranked = sorted(totals.values())
    for node, rows in unusual.items():
        if len(rows) < MIN_UNUSUAL:
            continue
        others = list(ranked)
        others.remove(totals[node])
        much = others[min(len(others) - 1, int(_MUCH * len(others)))] if others else 0.0
        # Few peers do not show how much healthy nodes differ.
        least = GROWTH_FACTOR * much if len(others) >= _MANY else _FEW_FACTOR * max(much, _FEW_LEAST)
        if (
            totals[node] < least
            or tail_probability(len(rows), len(growth[node]), limits[node][1]) * len(growth) >= DOUBT
        ):
            continue
        if rows[-1][0] < runs * (1 - _STOPPED):
            continue
        yield node, sum(value for _, value in rows), rows[0][0], len(rows)


def _peer_growth(growth: Mapping[str, Growth], node: str) -> list[float]:
    return sorted(value for other, rows in growth.items() if other != node for _, value in rows)


def _limit(others: Sequence[float]) -> tuple[float, float]:
    """Return the growth that 99 % of these values do not exceed (0 without any), and the chance of a larger one."""
    limit = others[min(len(others) - 1, int(_USUAL * len(others)))] if others else 0.0
    return limit, (len(others) - bisect_right(others, limit) + 1) / (len(others) + 1) if others else 0.01
