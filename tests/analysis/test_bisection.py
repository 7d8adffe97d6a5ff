"""Bisection of a group that hangs: simulated faults of every kind are found in a bounded number of rounds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from preflight.analysis.link_matrix import Answer, Group, answer, next_groups


def search(
    nodes: Group, hangs: Callable[[set[str]], bool], *, suspects: Group = (), min_size: int = 2
) -> tuple[Answer | None, int]:
    """Try the requested groups until none is left; return the answer and the number of rounds."""
    trials: dict[frozenset[str], bool | None] = {}
    for rounds in range(100):
        groups = next_groups(nodes, trials, suspects=suspects, min_size=min_size)
        if not groups:
            return answer(nodes, trials, suspects=suspects, min_size=min_size), rounds
        together = [name for group in groups for name in group]
        assert len(together) == len(set(together)), "groups tried at once share no node"
        for group in groups:
            assert min_size <= len(group) and frozenset(group) not in trials
            trials[frozenset(group)] = not hangs(set(group))
    raise AssertionError("it does not come to an end")


def names(count: int) -> Group:
    return tuple(f"n{index}" for index in range(count))


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 64, 1000])
def test_one_bad_node_is_named(count: int) -> None:
    for bad in random.Random(count).sample(names(count), 3):
        found, rounds = search(names(count), lambda group, bad=bad: bad in group)  # type: ignore[misc]
        assert found is not None and (found.kind, found.nodes) == ("nodes", (bad,))
        assert rounds <= math.ceil(math.log2(count)) + 3


@pytest.mark.parametrize("count", [4, 6, 8, 32])
def test_two_nodes_that_hang_only_together_are_reported_as_a_pair(count: int) -> None:
    chance = random.Random(count)
    for _ in range(20):
        pair = set(chance.sample(names(count), 2))
        found, _ = search(names(count), lambda group, pair=pair: pair <= group)  # type: ignore[misc]
        assert found is not None and (found.kind, set(found.nodes)) == ("between", pair)


def test_a_hang_of_only_the_whole_group_is_reported() -> None:
    found, rounds = search(names(16), lambda group: len(group) == 16)
    assert found is not None and found.kind == "whole" and rounds == 4


def test_a_hang_that_does_not_happen_again_is_told_from_one_that_needs_all_nodes() -> None:
    for suspects in ((), ("n0",), ("n0", "n1"), names(3)):
        found, _ = search(names(3), lambda group: len(group) == 3, suspects=suspects)
        assert found is not None and (found.kind, found.nodes) == ("whole", suspects or names(3))
        found, _ = search(names(3), lambda group: False, suspects=suspects)
        assert found is not None and found.kind == "none"


def test_a_fault_of_several_nodes_gives_the_smallest_group_found() -> None:
    found, _ = search(names(16), lambda group: len(group) >= 4)
    assert found is not None and found.kind == "group" and 4 <= len(found.nodes) < 8


@pytest.mark.parametrize("suspects", [(), ("n1",), ("n0", "n1")])
def test_two_nodes_have_no_smaller_group_and_are_tried_again(suspects: Group) -> None:
    found, rounds = search(names(2), lambda group: True, suspects=suspects)
    assert found == Answer("whole", suspects or names(2), 0, hanging=(names(2),)) and rounds == 1
    found, _ = search(names(2), lambda group: False, suspects=suspects)
    assert found is not None and found.kind == "none"


def test_a_node_with_several_ranks_is_tried_alone() -> None:
    found, _ = search(names(4), lambda group: "n2" in group, min_size=1)
    assert found is not None and found.nodes == ("n2",)


def test_a_second_test_confirms_refutes_or_finds_the_pair() -> None:
    nodes = names(6)
    found, rounds = search(nodes, lambda group: "n3" in group, suspects=("n3",))
    assert found is not None and (found.kind, found.nodes) == ("nodes", ("n3",))
    assert rounds == 2, "once more with a node that is known to be sound by then"
    found, _ = search(nodes, lambda group: False, suspects=("n3",))
    assert found is not None and found.kind == "none"
    found, _ = search(nodes, lambda group: {"n4", "n5"} <= group, suspects=("n3",))
    assert found is not None and (found.kind, found.nodes) == ("group", ("n1", "n2", "n4", "n5"))
    found, rounds = search(nodes, lambda group: {"n1", "n4"} <= group, suspects=("n1", "n4"))
    assert found is not None and (found.kind, rounds) == ("between", 2)
    found, _ = search(nodes, lambda group: "n4" in group, suspects=("n1", "n4"))
    assert found is not None and (found.kind, found.nodes) == ("nodes", ("n4",))


def test_two_suspects_are_tested_together_and_in_turn_with_one_witness() -> None:
    found, rounds = search(names(3), lambda group: "n0" in group, suspects=("n0", "n1"))
    assert found is not None and (found.nodes, rounds) == (("n0",), 3)


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("suspects", [("n0",), ("n0", "n1")])
def test_healthy_suspects_lead_to_the_node_that_only_made_them_wait(count: int, suspects: Group) -> None:
    bad = f"n{count - 1}"
    found, _ = search(names(count), lambda group: bad in group, suspects=suspects)
    assert found is not None and set(suspects).isdisjoint(found.nodes) and bad in found.nodes
    assert count == 6 or (found.kind, found.nodes) == ("nodes", (bad,))
    assert set(suspects) <= set(found.sound)


@pytest.mark.parametrize("suspects", [("n0",), ("n0", "n1"), ("n2",)])
def test_a_pair_among_three_is_found_from_every_suspect(suspects: Group) -> None:
    for pair in ({"n0", "n1"}, {"n0", "n2"}, {"n1", "n2"}):
        found, _ = search(names(3), lambda group, pair=pair: pair <= group, suspects=suspects)  # type: ignore[misc]
        assert found is not None and (found.kind, set(found.nodes)) == ("between", pair)


@pytest.mark.parametrize("suspects", [("n0",), ("n0", "n1"), ("n3",)])
def test_a_pair_among_four_is_found_although_the_suspects_are_others(suspects: Group) -> None:
    for pair in itertools.combinations(names(4), 2):
        found, _ = search(names(4), lambda group, pair=pair: set(pair) <= group, suspects=suspects)  # type: ignore[misc]
        assert found is not None and found.kind in ("between", "group") and set(pair) <= set(found.nodes), pair
        assert found.kind == "between" or len(found.nodes) == 2


def test_no_node_is_named_if_every_pair_hangs() -> None:
    for suspects in (("n0",), ("n0", "n1")):
        found, _ = search(names(3), lambda group: True, suspects=suspects)
        assert found is not None and (found.kind, found.nodes, found.sound) == ("every", names(3), ())


def test_of_three_nodes_the_two_others_are_cleared_first() -> None:
    assert next_groups(names(3), {}, suspects=("n1",)) == (("n0", "n2"),)
    found, rounds = search(names(3), lambda group: "n1" in group, suspects=("n1",))
    assert found is not None and (found.kind, found.nodes, rounds) == ("nodes", ("n1",), 3)


def test_two_bad_nodes_are_both_named() -> None:
    found, _ = search(names(6), lambda group: bool({"n1", "n4"} & group), suspects=("n1", "n4"))
    assert found is not None and (found.kind, found.nodes) == ("nodes", ("n1", "n4"))


def test_the_groups_of_suspects_come_first() -> None:
    assert next_groups(names(5), {}, suspects=("n1", "n2", "n4")) == (("n1", "n2", "n4"), ("n0", "n3"))
    assert next_groups(names(4), {}, suspects=("n0", "n3")) == (("n0", "n3"), ("n1", "n2"))


def test_a_trial_without_a_result_neither_hangs_nor_passes() -> None:
    halves = next_groups(names(4), {})
    trials: dict[frozenset[str], bool | None] = {frozenset(group): None for group in halves}
    neighbours = next_groups(names(4), trials)
    assert neighbours == (("n0", "n3"), ("n1", "n2")), "of four nodes in a ring, the other neighbours"
    trials.update({frozenset(group): True for group in neighbours})
    trials.update({frozenset(group): True for group in next_groups(names(4), trials)})
    found = answer(names(4), trials)
    assert found is not None and (found.kind, found.unfinished, found.trials) == ("open", halves, 4)


@pytest.mark.parametrize("suspects", [("n0",), ("n0", "n1")])
def test_suspects_are_not_cleared_or_blamed_by_trials_that_did_not_end(suspects: Group) -> None:
    for count in (3, 4):
        trials: dict[frozenset[str], bool | None] = {}
        while groups := next_groups(names(count), trials, suspects=suspects):
            trials.update({frozenset(group): None for group in groups})
        found = answer(names(count), trials, suspects=suspects)
        assert found is not None and (found.kind, found.trials, found.hanging) == ("open", 0, ())
        assert len(found.unfinished) == len(trials)


def test_the_smallest_group_so_far_is_reported_at_the_time_limit() -> None:
    found = answer(names(8), {frozenset(names(8)[:4]): False, frozenset(names(8)[4:]): True})
    assert found == Answer(
        "open",
        ("n0", "n1", "n2", "n3"),
        2,
        sound=names(8)[4:],
        hanging=(names(8)[:4],),
        untried=(("n0", "n1"), ("n2", "n3")),
    )
    assert answer(names(8), {}) is None
