"""Isolates the facts of nodes: if a check crashes on one node's data, it still judges the other nodes.

A check must handle every value that its probes' types allow, and a node may send any of them. If one of them makes the
check crash, its node is found by judging again with the facts of fewer nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from preflight.model.facts import Facts
from preflight.model.nodes import Fleet, NodeRecord
from preflight.model.requests import Unavailable

T = TypeVar("T")
#: If the facts of more nodes than this make a check crash, the check itself is at fault.
MAX_NODES = 32

#: A function of the nodes and their facts.
Judge = Callable[[Fleet, Facts], Iterable[T]]


def judged(judge: Judge[T], fleet: Fleet, facts: Facts) -> tuple[list[T], dict[str, str]]:
    """The result of `judge`, and the nodes whose facts it cannot handle, each with the error.

    Raises the error of `judge` if it crashes regardless of the facts.
    """
    try:
        return list(judge(fleet, facts)), {}
    except Exception as error:
        first = error
    nodes = sorted({node.name for node in fleet.nodes} | {record.request.node for record in facts.records})
    problems: dict[str, str] = {}

    def attempt(left_out: Mapping[str, str]) -> list[T] | Exception:
        try:
            return list(judge(fleet_without(fleet, left_out), facts_without(facts, left_out)))
        except Exception as error:
            return error

    def search(candidates: list[str], other: list[str]) -> None:
        """Find the candidates that make it crash. At the start their facts are excluded, like those of the `other`
        nodes.
        """
        if len(problems) > MAX_NODES:
            return
        found = attempt({**problems, **dict.fromkeys(other, "")})
        if not isinstance(found, Exception):
            return
        if len(candidates) == 1:
            problems[candidates[0]] = _error_text(found)
            return
        half = len(candidates) // 2
        search(candidates[:half], [*candidates[half:], *other])
        search(candidates[half:], other)

    if isinstance(attempt(dict.fromkeys(nodes, "")), Exception):
        raise first
    search(nodes, [])
    result = attempt(problems)
    if isinstance(result, Exception) or len(problems) > MAX_NODES:
        raise first
    return result, problems


def facts_without(facts: Facts, nodes: Mapping[str, str]) -> Facts:
    """The facts, with those of these nodes unavailable for the given reasons."""
    records = [
        replace(record, value=None, unavailable=_unavailable(nodes[record.request.node]))
        if record.request.node in nodes and record.unavailable is None
        else record
        for record in facts.records
    ]
    return Facts(records, tuple(event for event in facts.events() if event.node not in nodes))


def fleet_without(fleet: Fleet, nodes: Mapping[str, str]) -> Fleet:
    """The fleet without these nodes' own data."""
    records = tuple(_without_data(record) if record.node.name in nodes else record for record in fleet.records)
    return replace(fleet, records=records)


def _without_data(record: NodeRecord) -> NodeRecord:
    return NodeRecord(record.node, record.problem, record.problem_kind)


def _unavailable(why: str) -> Unavailable:
    return Unavailable("crashed", f"its facts cannot be judged: {why}" if why else "it was excluded")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"
