"""A check that crashes on one node's facts judges the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from preflight.engine.evaluate import MAX_NODES, judged
from preflight.model.recording import Fleet, Node, NodeRecord
from preflight.model.requests import EventRecord, FactRecord, Facts, Request


def probe() -> int:
    """A number."""
    return 0


NAME = f"{__name__}:probe"


def facts(values: dict[str, int]) -> Facts:
    """The fact of each node."""
    records = [FactRecord(Request(NAME, node), value) for node, value in values.items()]
    events = tuple(EventRecord(record.request.key, record.request.node, 0.0, "child", {}) for record in records)
    return Facts(records, events)


def fleet(values: dict[str, int]) -> Fleet:
    """The nodes of these facts."""
    return Fleet(tuple(NodeRecord(Node(node, index)) for index, node in enumerate(values)))


def inverse(fleet: Fleet, facts: Facts) -> Iterator[str]:
    """Crashes on a node that sent 0."""
    for record in facts.records:
        yield f"{record.request.node} {1 / record.value}" if record.unavailable is None else f"{record.request.node} -"


@pytest.mark.parametrize("bad", [["a"], ["h"], ["c", "d"], ["a", "e", "h"], []])
def test_only_the_nodes_that_make_it_crash_are_excluded(bad: list[str]) -> None:
    values = {node: 0 if node in bad else 2 for node in "abcdefgh"}
    found, problems = judged(inverse, fleet(values), facts(values))
    assert sorted(problems) == bad and all("ZeroDivisionError" in why for why in problems.values())
    assert found == [f"{node} {'-' if node in bad else 0.5}" for node in values]


def test_one_of_two_nodes_that_crash_only_together_is_excluded() -> None:
    values = {"a": 3, "b": 1, "c": -3}

    def total(fleet: Fleet, facts: Facts) -> Iterator[str]:
        yield str(1 / sum(record.value for record in facts.records if record.unavailable is None and record.value != 1))

    with pytest.raises(ZeroDivisionError):
        # Without any node there is a division by zero, too.
        judged(total, fleet(values), facts(values))

    def difference(fleet: Fleet, facts: Facts) -> Iterator[str]:
        numbers = [record.value for record in facts.records if record.unavailable is None]
        yield str(1 / ((sum(numbers) - 1) or len(numbers) - 3) if numbers else "none")

    found, problems = judged(difference, fleet(values), facts(values))
    assert len(found) == 1 and len(problems) == 1


def test_a_check_that_crashes_without_facts_is_itself_at_fault() -> None:
    def broken(fleet: Fleet, facts: Facts) -> Iterator[str]:
        raise LookupError("mine")
        yield ""

    with pytest.raises(LookupError, match="mine"):
        judged(broken, fleet({"a": 1}), facts({"a": 1}))


def test_a_check_that_crashes_on_most_nodes_is_itself_at_fault() -> None:
    values = {f"node{number}": 0 for number in range(MAX_NODES + 10)}
    with pytest.raises(ZeroDivisionError):
        judged(inverse, fleet(values), facts(values))
