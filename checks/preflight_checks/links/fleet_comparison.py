"""Links compared with each other: links that are far from the rest of the fleet, and what several such links share.

Each node is measured with a few partners, in rounds, so that no node takes part in two measurements at once. Outliers
are measured a second time, for longer and with little else running: a single outlier is not a finding, and a node that
had to wait for a processor proves nothing about a network. Both nodes of an outlier are also measured with others,
which shows whether a node or the link between them is at fault.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight._util.sequences import deviation_from
from preflight.analysis.link_matrix import Cell, Pair, Shape, T, rounds, shapes
from preflight.model.findings import Evidence
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, memoize, not_applicable, unknown
from preflight_checks.links.dial_requests import FREE, addresses_of
from preflight_checks.plans import no_requests
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.link_quality import PINGS, Direction, Quality, measure
from preflight_checks.probes.links import dial
from preflight_checks.requirements import fold, nodes_share_machine

#: The number of partners that each node is measured with.
PARTNERS = 3
#: The second measurement, of outliers only: longer transfers and trains, so that transients weigh less.
_TRAIN, _BULK_S = 1500, 0.25
_REDUCED_PINGS = 20
_OF_DATAGRAMS, _OF_TRANSFERS, _OF_PINGS = {"lossy", "narrow"}, {"slow"}, {"late", "unsteady"}
_DEADLINE_S = 5.0

#: A link is slow below the first share of what the others reach, and certainly slow below the second.
SLOW, BEYOND_DOUBT = 4.0, 20.0
#: From this number of nodes on, the median is the reference; with fewer, one bad node would lower it.
MIN_NODES_FOR_MEDIAN = 8
#: An outlier is this many deviations away (1.4826 MAD, the standard deviation of a normal distribution).
DEVIATIONS = 5.0
#: Python on one core moves about 10 Gbit/s; no more is expected of a faster card, and only this share of it.
MAX_EXPECTED_MBPS, OF_THE_CARD = 10_000, 8.0
#: A card that carried this much more than its reported speed has another speed: tunnel drivers invent one.
MAX_RATE_FACTOR = 1.25
#: A link is late if even its shortest round trip exceeds the others' by this factor and this amount.
LATE, LATE_S = 5.0, 0.001
#: It is unsteady if the middle 80 % of round trips spread this far.
UNSTEADY, UNSTEADY_S = 10.0, 0.005
#: Lost datagrams in one train that trigger a second one, and the share of all that makes a finding.
LOST, LOST_SHARE = 3, 0.004
#: Retransmitted segments of pings, which our own traffic cannot explain.
LOST_PINGS = 2
#: A measurement is inconclusive if its processes waited for a processor for more than this share of the time.
BUSY = 0.3


Ends = tuple[Interface | None, Interface | None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One direction of a measurement. `number` counts the pair's measurements; `rate_mbps` is the best of its
    streams.
    """

    pair: Pair
    number: int
    direction: Direction
    quality: Quality
    at_s: float
    rate_mbps: float | None
    ends: Ends

    @property
    def lost(self) -> int:
        """Datagrams of the train that did not arrive; 0 if none arrived, because a firewall then blocks them all."""
        return _lost_datagrams(self.direction)

    @property
    def lost_pings(self) -> int:
        """Retransmitted ping segments; 0 if datagrams show that only the other direction loses packets."""
        other = self.quality.back if self.direction is self.quality.out else self.quality.out
        if self.direction.arrived and self.lost < LOST <= _lost_datagrams(other):
            return 0
        return self.quality.lost_pings or 0

    def busy(self, kind: str) -> float:
        """Return the share of the time in which a process waited for a processor. Waiting loses no datagrams."""
        share = {"slow": self.direction.busy, "late": self.quality.busy, "unsteady": self.quality.busy}.get(kind)
        return share or 0.0


def _lost_datagrams(direction: Direction) -> int:
    return max(0, direction.sent - direction.arrived - direction.no_room) if direction.arrived else 0


@dataclass(frozen=True, slots=True)
class FleetValues:
    """The fleet's usual values, from the first measurement of every pair; None if nothing could be measured.

    Rates count only up to `Cards.ceiling_mbps`: above that, they depend on processors, not on the network.
    """

    rate_mbps: float | None
    rate_deviation: float
    least_s: float
    spread_s: float
    nodes: int


#: The kinds of faults of a link.
KINDS = ("slow", "late", "unsteady", "lossy", "narrow")


def plan_measurements(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request measurements of each node with a few partners, and repeated measurements of outliers."""
    if len(fleet.reached) < 2 or nodes_share_machine(fleet):
        return
    addresses = addresses_of(job, fleet, facts)
    closed = {
        (row.node, target.peer)
        for row in facts.each(dial)
        if isinstance(row.fact, Observed) and not row.params.get("look")
        for target in row.fact.value.targets
        if target.label == FREE and target.status != "ok"
    }
    names = tuple(addresses)
    first = [
        (a, b) for pairs in rounds(names, PARTNERS) for a, b in pairs if (a, b) not in closed and (b, a) not in closed
    ]
    for a, b in first:
        yield _request(a, b, addresses[b], {"try": 1})
    measurements = measurements_of(facts)
    if not measurements:
        return
    odd = suspects(measurements, facts)
    for source, peer in sorted({(min(pair), max(pair)) for pair in odd}):
        kinds = {*odd.get((source, peer), ()), *odd.get((peer, source), ())}
        again = {
            "try": 2,
            "pings": PINGS if kinds & _OF_PINGS else _REDUCED_PINGS,
            "train": _TRAIN if kinds & _OF_DATAGRAMS else 0,
            "bulk_s": _BULK_S if kinds & _OF_TRANSFERS else 0.0,
        }
        yield _request(source, peer, addresses[peer], again)


def _request(source: str, peer: str, host: str, params: Mapping[str, object]) -> Request:
    return Request(
        probe_name(measure),
        source,
        {"peer": peer, "host": host, **params},
        peers=(peer,),
        listen=probe_name(listen),
        exclusive=True,
        deadline_s=_DEADLINE_S,
    )


@memoize
def measurements_of(facts: Facts) -> dict[Pair, list[Measurement]]:
    """Return every measured direction, with the first measurement first."""
    measurements: dict[Pair, list[Measurement]] = {}
    at = {
        (node, address.address): item
        for node, observed in facts.observed(interfaces).items()
        for item in observed.interfaces
        for address in item.addresses
    }
    for row in facts.each(measure):
        if not isinstance(row.fact, Observed):
            continue
        quality, number = row.fact.value, int(row.params.get("try", 1))
        (peer,) = row.peers
        node, at_s = row.node, row.finished_s
        near, far = at.get((node, quality.source)), at.get((peer, quality.address))
        for pair, direction, ends in (
            ((node, peer), quality.out, (near, far)),
            ((peer, node), quality.back, (far, near)),
        ):
            rates = [rate for rate in (direction.single_mbps, direction.several_mbps) if rate is not None]
            measurements.setdefault(pair, []).append(
                Measurement(pair, number, direction, quality, at_s, max(rates) if rates else None, ends)
            )
    for several in measurements.values():
        several.sort(key=lambda item: item.number)
    return measurements


def fleet_values(measurements: Mapping[Pair, Sequence[Measurement]], cards: Cards) -> FleetValues:
    """Return the values that most links of the fleet reach in their first measurement."""
    first = [several[0] for several in measurements.values() if several[0].number == 1]
    nodes = len({name for item in first for name in item.pair})
    share = 0.5 if nodes >= MIN_NODES_FOR_MEDIAN else 0.25
    rates = sorted(min(rate, cards.ceiling_mbps(item)) for item in first if (rate := item.rate_mbps) is not None)
    rate = _quantile(rates, 1 - share) if rates else None
    deviation = deviation_from(rate, rates) if rate is not None and nodes >= MIN_NODES_FOR_MEDIAN else 0.0
    least = sorted(item.quality.least_s for item in first)
    spread = sorted(item.quality.spread_s for item in first)
    return FleetValues(rate, deviation, _quantile(least, share), _quantile(spread, share), nodes)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[round((len(ordered) - 1) * share)] if ordered else 0.0


def suspects(measurements: Mapping[Pair, Sequence[Measurement]], facts: Facts) -> dict[Pair, tuple[str, ...]]:
    """Return the faults that the first measurement shows, by direction."""
    common, cards = values_and_cards(facts)
    return {
        pair: kinds
        for pair, several in measurements.items()
        if several[0].number == 1 and (kinds := faults_in(several[0], common, cards))
    }


def faults_in(item: Measurement, common: FleetValues, cards: Cards) -> tuple[str, ...]:
    """Return the `KINDS` of faults in this one measurement."""
    quality = item.quality
    is_late = quality.least_s > max(LATE * common.least_s, common.least_s + LATE_S)
    unsteady = quality.spread_s > max(UNSTEADY * common.spread_s, UNSTEADY_S)
    lossy = item.lost >= LOST or item.lost_pings >= LOST_PINGS
    narrow = bool(
        item.direction.frame_bytes
        and not item.direction.frames_arrived
        and item.direction.arrived > 0.9 * item.direction.sent
    )
    holds = (_is_slow(item, common, cards), is_late, unsteady and not is_late, lossy, narrow)
    return tuple(kind for kind, held in zip(KINDS, holds, strict=True) if held)


def _is_slow(item: Measurement, common: FleetValues, cards: Cards) -> bool:
    return item.rate_mbps is not None and _is_slow_rate(item.rate_mbps, item, common, cards)


def _is_slow_rate(rate: float, item: Measurement, common: FleetValues, cards: Cards) -> bool:
    if common.rate_mbps is None:
        return False
    card = cards.expected_mbps(item)
    if card is not None and rate < card / OF_THE_CARD:
        return True
    out_of_line = rate < common.rate_mbps - DEVIATIONS * common.rate_deviation
    return out_of_line and rate < min(common.rate_mbps, cards.ceiling_mbps(item)) / SLOW


class Cards:
    """The network cards at the ends of measured links."""

    def __init__(self, measurements: Mapping[Pair, Sequence[Measurement]]) -> None:
        self._carried: dict[tuple[str, str], float] = {}
        for item in (item for several in measurements.values() for item in several):
            for name, end in zip(item.pair, item.ends, strict=True):
                if end is not None and item.rate_mbps is not None:
                    key = (name, end.name)
                    self._carried[key] = max(self._carried.get(key, 0.0), item.rate_mbps)

    def expected_mbps(self, item: Measurement) -> float | None:
        """Return the rate of the slower card, up to what one process can fill; None unless both cards are physical."""
        speeds = [end.speed_mbps for end in item.ends if end is not None and end.kind == "physical" and end.speed_mbps]
        return min(MAX_EXPECTED_MBPS, *speeds) if len(speeds) == 2 else None

    def ceiling_mbps(self, item: Measurement) -> float:
        """Return the highest rate expected of any link: what one process can fill, or the slower card's reported speed.

        Virtual cards also count, unless they carried more than they report.
        """
        ceiling = float(MAX_EXPECTED_MBPS)
        for name, end in zip(item.pair, item.ends, strict=True):
            if (
                end is not None
                and end.speed_mbps
                and self._carried.get((name, end.name), 0) < MAX_RATE_FACTOR * end.speed_mbps
            ):
                ceiling = min(ceiling, float(end.speed_mbps))
        return ceiling

    def describe(self, item: Measurement) -> str:
        """Return `eth0 (25000 Mbit/s) to eth0`, for evidence; empty if the interfaces are unknown."""
        names = [
            end.name + (f" ({end.speed_mbps} Mbit/s)" if end.speed_mbps else "") for end in item.ends if end is not None
        ]
        return " to ".join(names)


@memoize
def values_and_cards(facts: Facts) -> tuple[FleetValues, Cards]:
    """Return the fleet's usual values and its network cards."""
    seen = measurements_of(facts)
    cards = Cards(seen)
    return fleet_values(seen, cards), cards


@dataclass(frozen=True, slots=True)
class JudgedDirection:
    """A direction with its faults; load explains the `inconclusive` ones, and the `unconfirmed` ones were not measured
    again.
    """

    pair: Pair
    measurements: tuple[Measurement, ...]
    kinds: tuple[str, ...]
    inconclusive: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()


@memoize
def judged_directions(facts: Facts) -> tuple[JudgedDirection, ...]:
    """Return the judgement of every measured direction, without faults that a second measurement did not confirm."""
    measurements = measurements_of(facts)
    common, cards = values_and_cards(facts)
    directions: list[JudgedDirection] = []
    for pair, several in sorted(measurements.items()):
        fault_sets = [set(faults_in(item, common, cards)) for item in several]
        if len(several) < 2:
            once = tuple(kind for kind in KINDS if kind in fault_sets[0])
            directions.append(JudgedDirection(pair, tuple(several), (), (), once))
            continue
        always = set.intersection(*fault_sets)
        if "lossy" in always and not _loses_packets(several):
            always.discard("lossy")
        spoilt = {kind for kind in always if all(_is_explained_by_load(item, kind, common, cards) for item in several)}
        sure = tuple(kind for kind in KINDS if kind in always - spoilt)
        directions.append(JudgedDirection(pair, tuple(several), sure, tuple(kind for kind in KINDS if kind in spoilt)))
    return tuple(directions)


def _is_explained_by_load(item: Measurement, kind: str, common: FleetValues, cards: Cards) -> bool:
    """Return whether a busy node explains the measurement: waiting delays data by at most twice the larger share."""
    busy = item.busy(kind)
    if busy <= BUSY or kind != "slow" or busy >= 0.5:
        return busy > BUSY
    rate = item.rate_mbps
    return rate is None or not _is_slow_rate(rate / (1 - 2 * busy), item, common, cards)


def slowest_direction(facts: Facts, nodes: set[str]) -> tuple[float, Pair] | None:
    """Return the latest single-stream rate in Mbit/s of the slowest link between two of the nodes; None if there is
    none.
    """
    rates = [
        (rate, pair)
        for pair, several in measurements_of(facts).items()
        if set(pair) <= nodes and (rate := several[-1].direction.single_mbps or several[-1].rate_mbps) is not None
    ]
    return min(rates, default=None)


def _loses_packets(several: Iterable[Measurement]) -> bool:
    several = list(several)
    sent = sum(item.direction.sent for item in several)
    lost = sum(item.lost for item in several)
    return lost >= LOST_SHARE * sent > 0 or all(item.lost_pings >= LOST_PINGS for item in several)


def format_rate(mbps: float | None) -> str:
    """Return a rate for display."""
    if mbps is None:
        return "nothing"
    return f"{mbps / 1000:.3g} Gbit/s" if mbps >= 1000 else f"{mbps:.3g} Mbit/s"


def format_time(seconds: float) -> str:
    """Return a time for display: `1.9 s`, `61.2 ms`, `50 us`."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def subject(shape: Shape[T]) -> str:
    """Return the subject of a verdict about this shape."""
    if shape.kind == "pair":
        return f"{shape.node} {'and' if shape.mutual else 'to'} {shape.other}"
    return f"{shape.kind} {shape.node}".strip()


def pair_text(shape: Shape[T]) -> str:
    """Return the pairs of a shape, of which only the first four are named."""
    return fold((f"{source} to {peer}" for source, peer in sorted({cell.pair for cell in shape.cells})), 4)


def direction(shape: Shape[T]) -> str:
    """Return a description of a shape's direction."""
    if shape.kind == "everybody":
        return f"between any two nodes ({fold(shape.nodes)})"
    if shape.kind == "pair":
        return f"between {shape.node} and {shape.other}" if shape.mutual else f"from {shape.node} to {shape.other}"
    if shape.kind == "around":
        return f"on some links of {shape.node} ({pair_text(shape)})"
    return {"inbound": "to", "outbound": "from"}.get(shape.kind, "to and from") + f" {shape.node}"


#: Faults that differ in size by this factor have different causes.
MAGNITUDE_GAP = 10.0
PROBES = (measure, listen, interfaces)


def any_link_measured(fleet: Fleet, facts: Facts, subject: str) -> Generator[Verdict, None, bool]:
    """Return whether any link was measured; if none was, yield the reasons."""
    if len(fleet.nodes) < 2:
        yield not_applicable(subject, "the job has one node")
        return False
    if nodes_share_machine(fleet):
        yield not_applicable(subject, "all nodes are this machine")
        return False
    if any(isinstance(row.fact, Observed) for row in facts.each(measure)):
        return True
    reasons = dict.fromkeys(row.fact.reason for row in facts.each(measure) if not isinstance(row.fact, Observed))
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
    """Return the faults of these `kinds`, in groups of similar `size`, because a different order of magnitude has a
    different cause.

    Inconclusive links count neither for nor against a node.
    """
    directions, (common, cards) = judged_directions(facts), values_and_cards(facts)
    decided = [item for item in directions if not {*kinds} & {*item.inconclusive, *item.unconfirmed}]
    bad = [item for item in decided if is_bad(item)]
    if not bad:
        return LinkFaults(directions, (), common, cards)
    cells = [Cell(*item.pair, "way", item, item.measurements[-1].at_s) for item in decided]
    found: list[Shape[JudgedDirection]] = []
    for group in _groups(bad, size):
        pairs = {item.pair for item in group}
        found += shapes(cells, lambda cell, pairs=pairs: cell.pair in pairs)  # type: ignore[misc]
    return LinkFaults(directions, found, common, cards)


def _groups(
    slow_directions: Sequence[JudgedDirection], size: Callable[[JudgedDirection], float] | None
) -> Iterator[list[JudgedDirection]]:
    """Yield groups of items whose sizes are separated by a factor of `MAGNITUDE_GAP` or more."""
    if size is None:
        yield list(slow_directions)
        return
    group: list[JudgedDirection] = []
    for item in sorted(slow_directions, key=size):
        if group and size(item) > MAGNITUDE_GAP * size(group[-1]):
            yield group
            group = []
        group.append(item)
    yield group


def inconclusive_verdicts(faults: LinkFaults, kind: str, subject: str) -> Iterator[Verdict]:
    """Yield `unknown` for outliers on busy nodes, and for outliers that could not be measured again in time."""
    busy = [item for item in faults.every if kind in item.inconclusive]
    if busy:
        look = max((item.measurements[-1] for item in busy), key=lambda look: look.busy(kind))
        yield unknown(
            f"{subject}: {_directions(busy)}",
            f"inconclusive: host busy (one of the two hosts waited for a processor {look.busy(kind):.0%} of the "
            f"time; {load_of(look)})",
        )
    late = [item for item in faults.every if kind in item.unconfirmed]
    if late:
        yield unknown(f"{subject}: {_directions(late)}", "an outlier, with no time to measure it again")


def _directions(items: Sequence[JudgedDirection]) -> str:
    return fold((f"{item.pair[0]} to {item.pair[1]}" for item in items), 4)


def load_of(look: Measurement) -> str:
    average, processors = look.quality.average, look.quality.processors
    shown = [
        f"{load:.1f} on {count} processors"
        for load, count in zip(average, processors, strict=False)
        if load is not None
    ]
    return f"load average {' and '.join(shown)}" if shown else "load average unknown"


def coverage_text(faults: LinkFaults, fleet: Fleet) -> str:
    """Return the number of measured pairs out of all pairs."""
    pairs = len({frozenset(item.pair) for item in faults.every})
    # A node that was lost afterwards was measured all the same.
    nodes = {node.name for node in fleet.reached} | {name for item in faults.every for name in item.pair}
    pair_count = len(nodes) * (len(nodes) - 1) // 2
    return f"all {pairs} pairs" if pairs == pair_count else f"{pairs} of {pair_count} pairs"


def evidence_of(what: str, cell: Cell[JudgedDirection], observed: str, expected: str, command: str) -> Evidence:
    return Evidence(f"{what} from {cell.source} to {cell.peer}", observed, expected, command, cell.source, cell.at_s)


def times(shape: Shape[JudgedDirection]) -> str:
    least = min(len(cell.result.measurements) for cell in shape.cells)
    return "once" if least == 1 else "twice" if least == 2 else f"{least} times"


#: A check that judges the measurements of links.
link_check = functools.partial(check, plan=no_requests, follow_up=plan_measurements, probes=PROBES, when="link")
