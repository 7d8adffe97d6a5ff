"""Counters that grow on one node more than on its peers: memory errors, link flaps, replays, losses.

The growth of a counter between two runs is unusual if it exceeds 99 % of those of the other nodes. A node is a story if
its growth is unusual in so many runs that chance would not do it once in a hundred fleets (binomial), and if it grew in
all three times as much as 98 % of its peers (with fewer than 16 of them ten times, and by 30): old parts err more often
than new ones, all their life. One burst is one run, however large. After a restart counting begins at 0.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from preflight.commands.history.failures import DOUBT
from preflight.commands.history.past import Past, Series
from preflight.commands.history.robust import tail
from preflight.commands.history.stories import Story, listed
from preflight.model.measurements import Quantity

MIN_UNUSUAL = 3
_USUAL, _MUCH = 0.99, 0.98
_BURST = 5.0
FACTOR, _FEW_FACTOR = 3.0, 10.0
_MANY, _FEW_LEAST = 16, 3.0
#: A counter that has not grown unusually for this share of the runs has stopped.
_STOPPED = 0.25
#: Below this number of nodes, a node's own growth would decide what is usual.
_SMALL = 100

Growth = list[tuple[int, float]]


def growth_of(values: Sequence[float | None]) -> Growth:
    """The growth of a counter between runs that follow each other, by the later run."""
    points = [(run, value) for run, value in enumerate(values) if value is not None]
    return [
        (run, value - before if value >= before else value) for (_, before), (run, value) in itertools.pairwise(points)
    ]


def growing_counters(past: Past, groups: Mapping[str, Sequence[str]]) -> Iterator[Story]:
    """One story for each node with counters that grow."""
    found: dict[str, list[tuple[Quantity, float, int, int]]] = {}
    for series in past.series.values():
        if series.quantity.kind == "counter":
            for nodes in groups.values():
                for node, total, since, runs in _growing(series, nodes, len(past.runs)):
                    found.setdefault(node, []).append((series.quantity, total, since, runs))
    for node in sorted(found):
        parts = [f"{quantity.title}: {total:.0f} more in {runs} runs" for quantity, total, _, runs in found[node]]
        names = tuple(quantity.name for quantity, _, _, _ in found[node])
        since = min(item[2] for item in found[node])
        message = f"counts grow, unlike those of equal nodes: {listed(parts)}"
        yield Story("counter", (node,), names, since, found[node][0][1], message)


def _growing(series: Series, nodes: Sequence[str], runs: int) -> Iterator[tuple[str, float, int, int]]:
    """Each node that grows, with its growth in unusual runs, the first of these, and their number."""
    growth = {node: growth_of(series.values[node]) for node in nodes if node in series.values}
    growth = {node: rows for node, rows in growth.items() if rows}
    if not any(value for rows in growth.values() for _, value in rows):
        return
    pooled = sorted(value for rows in growth.values() for _, value in rows)
    limits = {node: _limit(pooled if len(growth) >= _SMALL else _of_others(growth, node)) for node in growth}
    unusual = {node: [(run, value) for run, value in growth[node] if value > limits[node][0]] for node in growth}
    # A burst counts as no more than a few usual values.
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
        # A few peers do not show how different healthy ones are.
        least = FACTOR * much if len(others) >= _MANY else _FEW_FACTOR * max(much, _FEW_LEAST)
        if totals[node] < least or tail(len(rows), len(growth[node]), limits[node][1]) * len(growth) >= DOUBT:
            continue
        if rows[-1][0] < runs * (1 - _STOPPED):
            continue
        yield node, sum(value for _, value in rows), rows[0][0], len(rows)


def _of_others(growth: Mapping[str, Growth], node: str) -> list[float]:
    return sorted(value for other, rows in growth.items() if other != node for _, value in rows)


def _limit(others: Sequence[float]) -> tuple[float, float]:
    """The growth that 99 % of these do not exceed, and the chance of one that does.

    Without a peer, a healthy counter is one that stands still.
    """
    limit = others[min(len(others) - 1, int(_USUAL * len(others)))] if others else 0.0
    return limit, (len(others) - bisect_right(others, limit) + 1) / (len(others) + 1) if others else 0.01
