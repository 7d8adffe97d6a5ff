"""Measurements of the smoke run: the pace of each node's slowest rank."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.job import Job
from preflight.model.measurements import Measurements, Quantity
from preflight.model.recording import Facts, Fleet
from preflight_checks.charts.rank_timelines import pace_of_ranks

PACE = Quantity("rank_pace", "time of a fixed piece of work on the slowest rank", "seconds", share=0.05)


def of_ranks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Measurements]:
    """The time that the slowest rank of each node takes for the same work without communication."""
    slowest: dict[str, float] = {}
    for node, seconds in pace_of_ranks(job, facts):
        slowest[node] = max(seconds, slowest.get(node, 0.0))
    if slowest:
        nodes = sorted(slowest)
        yield Measurements(PACE, tuple(nodes), tuple(slowest[node] for node in nodes))
