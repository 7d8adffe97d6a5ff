"""What all checks of measured ways share: when there is nothing to judge, which shapes are found, what is quoted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from preflight.job import Job
from preflight.judgement import Verdict, not_applicable, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.matrix import Cell, Shape, shapes
from preflight.outcome import Evidence
from preflight.recording import Facts, Fleet, Observed
from preflight_checks.demands import fold, stand_ins
from preflight_checks.links.quality import Cards, Judged, Try, Usual, judged, of_fleet
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.link_quality import measure

#: Ways of one fault are not that many times as bad as each other.
UNLIKE = 10.0
PROBES = (measure, listen, interfaces)
COST = (
    "under a second for each of three partners, one at a time: 200 small messages, 500 datagrams each way, and four "
    "transfers of 0.12 s or 64 MiB; as much again, longer, for what is out of line"
)


def nothing_measured(job: Job, fleet: Fleet, facts: Facts, what: str) -> Verdict | None:
    """What there is to say where nothing was measured."""
    if len(fleet.nodes) < 2:
        return not_applicable(what, "the job has one node")
    if stand_ins(fleet):
        return not_applicable(what, "all nodes are this machine")
    if not any(isinstance(seen.fact, Observed) for seen in facts.each(measure)):
        reasons = dict.fromkeys(s.fact.reason for s in facts.each(measure) if not isinstance(s.fact, Observed))
        return unknown(what, fold(reasons, 2) or "no two nodes could be measured, because no connection came about")
    return None


@dataclass(frozen=True)
class Found:
    """The directions with one kind of trouble, by their shapes, and what the fleet is like."""

    every: Sequence[Judged]
    shapes: Sequence[Shape[Judged]]
    usual: Usual
    cards: Cards


def find(
    facts: Facts,
    kinds: Sequence[str],
    is_bad: Callable[[Judged], bool],
    size: Callable[[Judged], float] | None = None,
) -> Found:
    """What is wrong in respect of `kinds`: faults of another order of magnitude, by `size`, have another cause.

    Ways that are inconclusive speak neither for a node nor against it.
    """
    every, (common, cards) = judged(facts), of_fleet(facts)
    told = [item for item in every if not {*kinds} & {*item.inconclusive, *item.once}]
    bad = [item for item in told if is_bad(item)]
    if not bad:
        return Found(every, (), common, cards)
    cells = [Cell(*item.pair, "way", item, item.looks[-1].at_s) for item in told]
    found: list[Shape[Judged]] = []
    for group in _alike(bad, size):
        pairs = {item.pair for item in group}
        found += shapes(cells, lambda cell, pairs=pairs: cell.pair in pairs)  # type: ignore[misc]
    return Found(every, found, common, cards)


def _alike(bad: Sequence[Judged], size: Callable[[Judged], float] | None) -> Iterator[list[Judged]]:
    """Groups between whose sizes there is a gap of `UNLIKE`."""
    if size is None:
        yield list(bad)
        return
    group: list[Judged] = []
    for item in sorted(bad, key=size):
        if group and size(item) > UNLIKE * size(group[-1]):
            yield group
            group = []
        group.append(item)
    yield group


def inconclusive(found: Found, kind: str, what: str) -> Iterator[Verdict]:
    """Ways that were out of line while a node had no processor for them, or when no time was left to look again."""
    busy = [item for item in found.every if kind in item.inconclusive]
    if busy:
        look = max((item.looks[-1] for item in busy), key=lambda look: look.busy(kind))
        yield unknown(
            f"{what}: {_ways(busy)}",
            f"inconclusive: host busy (one of the two waited {look.busy(kind):.0%} of the time for a processor; "
            f"{load_of(look)})",
        )
    late = [item for item in found.every if kind in item.once]
    if late:
        yield unknown(f"{what}: {_ways(late)}", "out of line once, and no time was left to measure it again")


def _ways(items: Sequence[Judged]) -> str:
    return fold((f"{item.pair[0]} to {item.pair[1]}" for item in items), 4)


def load_of(look: Try) -> str:
    average, processors = look.quality.average, look.quality.processors
    shown = [
        f"{load:.1f} on {count} processors"
        for load, count in zip(average, processors, strict=False)
        if load is not None
    ]
    return f"load average {' and '.join(shown)}" if shown else "load average not known"


def covered(found: Found, fleet: Fleet) -> str:
    """How many pairs were measured, of how many."""
    pairs = len({frozenset(item.pair) for item in found.every})
    there = len(fleet.reached) * (len(fleet.reached) - 1) // 2
    return f"all {pairs} pairs" if pairs == there else f"{pairs} of {there} pairs"


def evidence_of(what: str, cell: Cell[Judged], seen: str, expected: str, command: str) -> Evidence:
    return Evidence(f"{what} from {cell.source} to {cell.peer}", seen, expected, command, cell.source, cell.at_s)


def times(shape: Shape[Judged]) -> str:
    least = min(len(cell.result.looks) for cell in shape.cells)
    return "once" if least == 1 else "twice" if least == 2 else f"{least} times"
