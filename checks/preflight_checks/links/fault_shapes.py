"""What the checks of links share: shapes of faults in words, missing measurements, and quoted evidence."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from preflight.analysis.link_matrix import Cell, Shape, T, shapes
from preflight.model.findings import Evidence
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, not_applicable, unknown
from preflight_checks.links.fleet_comparison import (
    Cards,
    FleetValues,
    JudgedDirection,
    Measurement,
    judged,
    of_fleet,
    plan_measurements,
)
from preflight_checks.plans import no_requests
from preflight_checks.probes.interfaces import interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.link_quality import measure
from preflight_checks.requirements import fold, nodes_share_machine


def subject(shape: Shape[T]) -> str:
    """The subject of a verdict about this shape."""
    if shape.kind == "pair":
        return f"{shape.node} {'and' if shape.mutual else 'to'} {shape.other}"
    return f"{shape.kind} {shape.node}".strip()


def pair_list(shape: Shape[T]) -> str:
    """The pairs of a shape; the first four by name."""
    return fold((f"{source} to {peer}" for source, peer in sorted({cell.pair for cell in shape.cells})), 4)


def direction(shape: Shape[T]) -> str:
    """The direction of a shape, in words."""
    if shape.kind == "everybody":
        return f"between any two nodes ({fold(shape.nodes)})"
    if shape.kind == "pair":
        return f"between {shape.node} and {shape.other}" if shape.mutual else f"from {shape.node} to {shape.other}"
    if shape.kind == "around":
        return f"on some links of {shape.node} ({pair_list(shape)})"
    return {"inbound": "to", "outbound": "from"}.get(shape.kind, "to and from") + f" {shape.node}"


#: Faults that differ in size by this factor have different causes.
MAGNITUDE_GAP = 10.0
PROBES = (measure, listen, interfaces)
COST = (
    "under a second for each of three partners, one at a time: 200 small messages, 500 datagrams each way, and four "
    "transfers of 0.12 s or 64 MiB; outliers once more, for longer"
)


def some_measured(fleet: Fleet, facts: Facts, subject: str) -> Generator[Verdict, None, bool]:
    """Whether a link was measured; otherwise yields why not."""
    if len(fleet.nodes) < 2:
        yield not_applicable(subject, "the job has one node")
        return False
    if nodes_share_machine(fleet):
        yield not_applicable(subject, "all nodes are this machine")
        return False
    if any(isinstance(seen.fact, Observed) for seen in facts.each(measure)):
        return True
    reasons = dict.fromkeys(seen.fact.reason for seen in facts.each(measure) if not isinstance(seen.fact, Observed))
    yield unknown(subject, fold(reasons, 2) or "no two nodes could be measured, because no connection was established")
    return False


@dataclass(frozen=True)
class LinkFaults:
    """The directions with one kind of fault, grouped into shapes, and the fleet's usual values."""

    every: Sequence[JudgedDirection]
    shapes: Sequence[Shape[JudgedDirection]]
    usual: FleetValues
    cards: Cards


def find(
    facts: Facts,
    kinds: Sequence[str],
    is_bad: Callable[[JudgedDirection], bool],
    size: Callable[[JudgedDirection], float] | None = None,
) -> LinkFaults:
    """The faults of these `kinds`, separated by order of magnitude of `size`, because that points to another cause.

    Inconclusive links count neither for nor against a node.
    """
    every, (common, cards) = judged(facts), of_fleet(facts)
    decided = [item for item in every if not {*kinds} & {*item.inconclusive, *item.unconfirmed}]
    bad = [item for item in decided if is_bad(item)]
    if not bad:
        return LinkFaults(every, (), common, cards)
    cells = [Cell(*item.pair, "way", item, item.measurements[-1].at_s) for item in decided]
    found: list[Shape[JudgedDirection]] = []
    for group in _groups(bad, size):
        pairs = {item.pair for item in group}
        found += shapes(cells, lambda cell, pairs=pairs: cell.pair in pairs)  # type: ignore[misc]
    return LinkFaults(every, found, common, cards)


def _groups(
    bad: Sequence[JudgedDirection], size: Callable[[JudgedDirection], float] | None
) -> Iterator[list[JudgedDirection]]:
    """Groups of items whose sizes are separated by a factor of `MAGNITUDE_GAP` or more."""
    if size is None:
        yield list(bad)
        return
    group: list[JudgedDirection] = []
    for item in sorted(bad, key=size):
        if group and size(item) > MAGNITUDE_GAP * size(group[-1]):
            yield group
            group = []
        group.append(item)
    yield group


def inconclusive(found: LinkFaults, kind: str, subject: str) -> Iterator[Verdict]:
    """`unknown` for outliers on busy nodes, and for those that could not be measured again in time."""
    busy = [item for item in found.every if kind in item.inconclusive]
    if busy:
        look = max((item.measurements[-1] for item in busy), key=lambda look: look.busy(kind))
        yield unknown(
            f"{subject}: {_directions(busy)}",
            f"inconclusive: host busy (one of the two waited {look.busy(kind):.0%} of the time for a processor; "
            f"{load_of(look)})",
        )
    late = [item for item in found.every if kind in item.unconfirmed]
    if late:
        yield unknown(f"{subject}: {_directions(late)}", "an outlier once, and there was no time to measure it again")


def _directions(items: Sequence[JudgedDirection]) -> str:
    return fold((f"{item.pair[0]} to {item.pair[1]}" for item in items), 4)


def load_of(look: Measurement) -> str:
    average, processors = look.quality.average, look.quality.processors
    shown = [
        f"{load:.1f} on {count} processors"
        for load, count in zip(average, processors, strict=False)
        if load is not None
    ]
    return f"load average {' and '.join(shown)}" if shown else "load average not known"


def covered(found: LinkFaults, fleet: Fleet) -> str:
    """How many pairs were measured, and out of how many."""
    pairs = len({frozenset(item.pair) for item in found.every})
    # A node that was lost afterwards was measured all the same.
    nodes = {node.name for node in fleet.reached} | {name for item in found.every for name in item.pair}
    pair_count = len(nodes) * (len(nodes) - 1) // 2
    return f"all {pairs} pairs" if pairs == pair_count else f"{pairs} of {pair_count} pairs"


def evidence_of(what: str, cell: Cell[JudgedDirection], seen: str, expected: str, command: str) -> Evidence:
    return Evidence(f"{what} from {cell.source} to {cell.peer}", seen, expected, command, cell.source, cell.at_s)


def times(shape: Shape[JudgedDirection]) -> str:
    least = min(len(cell.result.measurements) for cell in shape.cells)
    return "once" if least == 1 else "twice" if least == 2 else f"{least} times"


#: A check that judges the measurements of links.
link_check = functools.partial(
    check, plan=no_requests, follow_up=plan_measurements, probes=PROBES, cost=COST, when="link"
)
