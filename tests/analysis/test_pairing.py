"""Pairs in rounds."""

from __future__ import annotations

import itertools
import time

import pytest

from preflight.analysis.node_groups import ALL_PAIRS_UP_TO, disjoint, round_count, rounds, schedule
from preflight.model.requests import Request


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_every_pair_meets_once_and_no_node_twice_in_a_round(count: int) -> None:
    names = [f"n{i}" for i in range(count)]
    found = list(rounds(names))
    assert len(found) == count - 1 + count % 2
    for pairs in found:
        met = [name for pair in pairs for name in pair]
        assert len(met) == len(set(met))
    every = [frozenset(pair) for pairs in found for pair in pairs]
    assert sorted(map(sorted, every)) == sorted(map(sorted, itertools.combinations(names, 2)))


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_nodes_to_pair(count: int) -> None:
    assert list(rounds(list(range(count)))) == []


def test_a_sample_above_the_limit_still_pairs_every_node() -> None:
    plan = schedule([f"n{i}" for i in range(20)], max_rounds=4)
    assert plan.is_sample and len(plan.rounds) == 4
    assert plan.pairs == 40 and plan.all_pairs == 190
    assert "40 of 190" in plan.statement and "4 partners per node" in plan.statement
    for pairs in plan.rounds:
        assert len({name for pair in pairs for name in pair}) == 20


def test_the_limit_of_all_pairs_and_the_size_of_samples() -> None:
    assert round_count(ALL_PAIRS_UP_TO) == ALL_PAIRS_UP_TO - 1
    assert [round_count(n) for n in (65, 1000, 5000, 10_000)] == [48, 48, 9, 8]


@pytest.mark.parametrize("count", [65, 101, 1000])
def test_a_sample_gives_each_node_the_same_number_of_partners(count: int) -> None:
    met: dict[int, set[int]] = {}
    for pairs in schedule([str(i) for i in range(count)]).rounds:
        for a, b in pairs:
            met.setdefault(int(a), set()).add(int(b))
            met.setdefault(int(b), set()).add(int(a))
    assert len(met) == count
    assert {len(others) for others in met.values()} <= {47, 48}


@pytest.mark.thorough
def test_rounds_of_ten_thousand_nodes_are_planned_at_once() -> None:
    began = time.process_time()
    plan = schedule([f"n{i}" for i in range(10_000)])
    assert plan.pairs == 8 * 5000 and time.process_time() - began < 1


def test_disjoint_rounds_are_the_planned_rounds() -> None:
    asked = [Request("m:f", a, peers=(b,), exclusive=True) for pairs in rounds(["a", "b", "c", "d"]) for a, b in pairs]
    found = disjoint(asked)
    assert [len(item) for item in found] == [2, 2, 2]
    assert [r.key for item in found for r in item] == [r.key for r in asked]


@pytest.mark.thorough
def test_rounds_of_many_requests_are_computed_quickly() -> None:
    names = [f"n{i}" for i in range(5000)]
    asked = [Request("m:f", a, peers=(b,)) for pairs in rounds(names, 3) for a, b in pairs]
    began = time.process_time()
    assert [len(item) for item in disjoint(asked)] == [2500, 2500, 2500]
    assert time.process_time() - began < 1
