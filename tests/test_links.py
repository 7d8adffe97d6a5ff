"""Pairs in rounds."""

from __future__ import annotations

import itertools

import pytest

from preflight.links import disjoint, rounds, schedule
from preflight.request import Request


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(count: int) -> None:
    names = [f"n{i}" for i in range(count)]
    found = rounds(names)
    assert len(found) == count - 1 + count % 2
    for pairs in found:
        met = [name for pair in pairs for name in pair]
        assert len(met) == len(set(met))
    every = [frozenset(pair) for pairs in found for pair in pairs]
    assert sorted(map(sorted, every)) == sorted(map(sorted, itertools.combinations(names, 2)))


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_to_pair(count: int) -> None:
    assert rounds(list(range(count))) == ()


def test_above_the_limit_a_sample_is_stated_that_still_meets_every_node() -> None:
    plan = schedule([f"n{i}" for i in range(20)], most_rounds=4)
    assert plan.is_sample and len(plan.rounds) == 4
    assert plan.pairs == 40 and plan.all_pairs == 190
    assert "40 of 190" in plan.statement
    for pairs in plan.rounds:
        assert len({name for pair in pairs for name in pair}) == 20


def test_requests_come_back_in_rounds_with_both_directions_together() -> None:
    asked = [
        Request("m:f", a, peer=b)
        for pairs in rounds(["a", "b", "c", "d"])
        for x, y in pairs
        for a, b in ((x, y), (y, x))
    ]
    found = disjoint(asked)
    assert [len(item) for item in found] == [4, 4, 4]
    assert sorted(r.key for item in found for r in item) == sorted(r.key for r in asked)
