"""Which ways between nodes are worse than those of the fleet: what is measured, when once more, and what it comes to.

A measurement is taken of each node with a few partners, in rounds, so that no node takes part in two at once. What is
out of line is measured a second time, longer, with little else under way: one odd number is no finding, and a node that
had to wait for a processor says nothing about a network. Both nodes of an odd pair are measured with others, too, so
that it shows whether a node or the way between the two is to blame.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.links import rounds
from preflight.matrix import Pair
from preflight.once import once
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import stand_ins
from preflight_checks.links.dialling import FREE, addresses_of
from preflight_checks.probes.interfaces import Interface, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.link_quality import PINGS, Quality, Way, measure
from preflight_checks.probes.links import dial

#: Each node is measured with so many others.
PARTNERS = 3
#: The second look: longer transfers and longer trains, so that a moment weighs less, and only of what was odd.
_TRAIN, _BULK_S = 1500, 0.25
_FEW_PINGS = 20
_OF_DATAGRAMS, _OF_TRANSFERS, _OF_PINGS = {"lossy", "narrow"}, {"slow"}, {"late", "unsteady"}
_DEADLINE_S = 5.0

#: A way is slow below this part of what the others reach, and beyond doubt below that.
SLOW, BEYOND_DOUBT = 4.0, 20.0
#: With so many nodes the median is what the others reach; with fewer one bad node would pull it down.
ENOUGH_NODES = 8
#: So many deviations (1.4826 MAD, the standard deviation of a normal distribution) off is out of line.
DEVIATIONS = 5.0
#: Python on one core moves about 10 Gbit/s anywhere; a faster card is not asked for more, and only for so much of it.
MOST_EXPECTED_MBPS, OF_THE_CARD = 10_000, 8.0
#: A card that carried so much more than the speed it states does not have that speed: drivers of tunnels make one up.
REFUTED = 1.25
#: A round trip is late when even its shortest is so many times, and so much, above those of the others.
LATE, LATE_S = 5.0, 0.001
#: It is unsteady when the middle 80 % of round trips are so far apart.
UNSTEADY, UNSTEADY_S = 10.0, 0.005
#: Lost datagrams in one train that are worth a second one, and the share of all that is worth a finding.
LOST, LOST_SHARE = 3, 0.004
#: Segments of pings that TCP sent again, which no queue of our own making can explain.
LOST_PINGS = 2
#: Above this share of the time without a processor, what was measured is inconclusive.
BUSY = 0.3


Ends = tuple[Interface | None, Interface | None]


@dataclass(frozen=True, slots=True)
class Try:
    """One direction of one measurement.

    `number` counts the looks at this pair; `rate_mbps` is what got through, by one stream or several, whichever was
    more; `ends` are the cards that send and receive, by the addresses of the connection.
    """

    pair: Pair
    number: int
    way: Way
    quality: Quality
    at_s: float
    rate_mbps: float | None
    ends: Ends

    @property
    def lost(self) -> int:
        """Datagrams of the train that did not arrive; 0 where none did, since firewalls forbid them altogether."""
        return _lost(self.way)

    @property
    def lost_pings(self) -> int:
        """Segments of round trips that TCP sent again, unless datagrams tell that it is the other way that loses."""
        other = self.quality.back if self.way is self.quality.out else self.quality.out
        if self.way.arrived and self.lost < LOST <= _lost(other):
            return 0
        return self.quality.lost_pings or 0

    def busy(self, kind: str) -> float:
        """For which share of the time somebody waited for a processor while this was measured.

        Datagrams and frames that get lost do not care; those that only found no room are not counted as lost.
        """
        share = {"slow": self.way.busy, "late": self.quality.busy, "unsteady": self.quality.busy}.get(kind)
        return share or 0.0


def _lost(way: Way) -> int:
    return max(0, way.sent - way.arrived - way.no_room) if way.arrived else 0


@dataclass(frozen=True, slots=True)
class Usual:
    """What the fleet reaches, from the first look at every pair; None where nothing could be measured.

    Rates count up to `Cards.ceiling_mbps` only: what lies above it tells of processors and not of a network.
    """

    rate_mbps: float | None
    rate_deviation: float
    least_s: float
    spread_s: float
    nodes: int


#: What may be wrong with a way.
KINDS = ("slow", "late", "unsteady", "lossy", "narrow")


def plan_measures(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Each node with a few partners; when that is known, once more whatever is out of line."""
    if len(fleet.reached) < 2 or stand_ins(fleet):
        return
    addresses = addresses_of(job, fleet, facts)
    closed = _closed(facts)
    names = tuple(addresses)
    first = [
        (a, b) for pairs in rounds(names, PARTNERS) for a, b in pairs if (a, b) not in closed and (b, a) not in closed
    ]
    for a, b in first:
        yield _request(a, b, addresses[b], {"try": 1})
    seen = tries(facts)
    if not seen:
        return
    odd = suspects(seen, facts)
    for source, peer in sorted({(min(pair), max(pair)) for pair in odd}):
        kinds = {*odd.get((source, peer), ()), *odd.get((peer, source), ())}
        again = {
            "try": 2,
            "pings": PINGS if kinds & _OF_PINGS else _FEW_PINGS,
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


def _closed(facts: Facts) -> set[Pair]:
    """Ways on which no connection came about, or nothing large got through: there is nothing to measure."""
    return {
        (seen.node, target.peer)
        for seen in facts.each(dial)
        if isinstance(seen.fact, Observed) and not seen.params.get("look")
        for target in seen.fact.value.targets
        if target.label == FREE and target.status != "ok"
    }


@once
def tries(facts: Facts) -> dict[Pair, list[Try]]:
    """Every direction that was measured, the first look first."""
    found: dict[Pair, list[Try]] = {}
    at = {
        (node, address.address): item
        for node, have in facts.observed(interfaces).items()
        for item in have.interfaces
        for address in item.addresses
    }
    for seen in facts.each(measure):
        if not isinstance(seen.fact, Observed):
            continue
        quality, number = seen.fact.value, int(seen.params.get("try", 1))
        (peer,) = seen.peers
        node, at_s = seen.node, seen.finished_s
        here, there = at.get((node, quality.source)), at.get((peer, quality.address))
        for pair, way, ends in (
            ((node, peer), quality.out, (here, there)),
            ((peer, node), quality.back, (there, here)),
        ):
            rates = [rate for rate in (way.single_mbps, way.several_mbps) if rate is not None]
            found.setdefault(pair, []).append(
                Try(pair, number, way, quality, at_s, max(rates) if rates else None, ends)
            )
    for several in found.values():
        several.sort(key=lambda item: item.number)
    return found


def usual(seen: Mapping[Pair, Sequence[Try]], cards: Cards) -> Usual:
    """What most ways of the fleet reach, by their first look."""
    first = [several[0] for several in seen.values() if several[0].number == 1]
    nodes = len({name for item in first for name in item.pair})
    share = 0.5 if nodes >= ENOUGH_NODES else 0.25
    rates = sorted(min(rate, cards.ceiling_mbps(item)) for item in first if (rate := item.rate_mbps) is not None)
    rate = _at(rates, 1 - share) if rates else None
    deviation = 0.0
    if rate is not None and nodes >= ENOUGH_NODES:
        deviation = 1.4826 * statistics.median(abs(value - rate) for value in rates)
    least = sorted(item.quality.least_s for item in first)
    spread = sorted(item.quality.spread_s for item in first)
    return Usual(rate, deviation, _at(least, share), _at(spread, share), nodes)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[round((len(ordered) - 1) * share)] if ordered else 0.0


def suspects(seen: Mapping[Pair, Sequence[Try]], facts: Facts) -> dict[Pair, tuple[str, ...]]:
    """What is out of line at the first look, by direction."""
    common, cards = of_fleet(facts)
    found: dict[Pair, tuple[str, ...]] = {}
    for pair, several in seen.items():
        if several[0].number == 1:
            kinds = wrong_with(several[0], common, cards)
            if kinds:
                found[pair] = kinds
    return found


def wrong_with(item: Try, common: Usual, cards: Cards) -> tuple[str, ...]:
    """Which of `KINDS` hold for this one look."""
    quality = item.quality
    late = quality.least_s > max(LATE * common.least_s, common.least_s + LATE_S)
    unsteady = quality.spread_s > max(UNSTEADY * common.spread_s, UNSTEADY_S)
    lossy = item.lost >= LOST or item.lost_pings >= LOST_PINGS
    narrow = bool(item.way.frame_bytes and not item.way.frames_arrived and item.way.arrived > 0.9 * item.way.sent)
    holds = (_slow(item, common, cards), late, unsteady and not late, lossy, narrow)
    return tuple(kind for kind, held in zip(KINDS, holds, strict=True) if held)


def _slow(item: Try, common: Usual, cards: Cards) -> bool:
    return item.rate_mbps is not None and _slow_at(item.rate_mbps, item, common, cards)


def _slow_at(rate: float, item: Try, common: Usual, cards: Cards) -> bool:
    if common.rate_mbps is None:
        return False
    card = cards.expected_mbps(item)
    if card is not None and rate < card / OF_THE_CARD:
        return True
    out_of_line = rate < common.rate_mbps - DEVIATIONS * common.rate_deviation
    return out_of_line and rate < min(common.rate_mbps, cards.ceiling_mbps(item)) / SLOW


class Cards:
    """The network cards at the ends of measured ways."""

    def __init__(self, seen: Mapping[Pair, Sequence[Try]]) -> None:
        self._carried: dict[tuple[str, str], float] = {}
        for item in (item for several in seen.values() for item in several):
            for name, end in zip(item.pair, item.ends, strict=True):
                if end is not None and item.rate_mbps is not None:
                    key = (name, end.name)
                    self._carried[key] = max(self._carried.get(key, 0.0), item.rate_mbps)

    def expected_mbps(self, item: Try) -> float | None:
        """What the slower of two real cards carries, as far as one process can fill it; None without real cards."""
        speeds = [end.speed_mbps for end in item.ends if end is not None and end.kind == "physical" and end.speed_mbps]
        return min(MOST_EXPECTED_MBPS, *speeds) if len(speeds) == 2 else None

    def ceiling_mbps(self, item: Try) -> float:
        """More than this is asked of no way: what one process fills, or the speed that the slower of both cards states.

        Cards of virtual machines count, too, as long as they never carried more than that.
        """
        ceiling = float(MOST_EXPECTED_MBPS)
        for name, end in zip(item.pair, item.ends, strict=True):
            if end is not None and end.speed_mbps and self._carried.get((name, end.name), 0) < REFUTED * end.speed_mbps:
                ceiling = min(ceiling, float(end.speed_mbps))
        return ceiling

    def spoken(self, item: Try) -> str:
        """`eth0 (25000 Mbit/s) to eth0`, for evidence; empty where the interfaces are not known."""
        names = [
            end.name + (f" ({end.speed_mbps} Mbit/s)" if end.speed_mbps else "") for end in item.ends if end is not None
        ]
        return " to ".join(names)


@once
def of_fleet(facts: Facts) -> tuple[Usual, Cards]:
    """What the fleet reaches, and over which cards."""
    seen = tries(facts)
    cards = Cards(seen)
    return usual(seen, cards), cards


@dataclass(frozen=True, slots=True)
class Judged:
    """One direction after all looks: what held in each of them, and what is not known for sure.

    `inconclusive` held while a node had no processor for it; `once` was seen, and there was no time for another look.
    """

    pair: Pair
    looks: tuple[Try, ...]
    kinds: tuple[str, ...]
    inconclusive: tuple[str, ...] = ()
    once: tuple[str, ...] = ()


@once
def judged(facts: Facts) -> tuple[Judged, ...]:
    """Every measured direction. What was out of line only once is not."""
    seen = tries(facts)
    common, cards = of_fleet(facts)
    found: list[Judged] = []
    for pair, several in sorted(seen.items()):
        held = [set(wrong_with(item, common, cards)) for item in several]
        if len(several) < 2:
            once = tuple(kind for kind in KINDS if kind in held[0])
            found.append(Judged(pair, tuple(several), (), (), once))
            continue
        always = set.intersection(*held)
        if "lossy" in always and not _loses(several):
            always.discard("lossy")
        spoilt = {kind for kind in always if all(_spoilt(item, kind, common, cards) for item in several)}
        sure = tuple(kind for kind in KINDS if kind in always - spoilt)
        found.append(Judged(pair, tuple(several), sure, tuple(kind for kind in KINDS if kind in spoilt)))
    return tuple(found)


def _spoilt(item: Try, kind: str, common: Usual, cards: Cards) -> bool:
    """Whether a busy node explains what was seen.

    Data waits for either end in turn, so that both together hold it up for at most twice the larger share. What is
    slow beyond that is slow for another reason.
    """
    busy = item.busy(kind)
    if busy <= BUSY or kind != "slow" or busy >= 0.5:
        return busy > BUSY
    rate = item.rate_mbps
    return rate is None or not _slow_at(rate / (1 - 2 * busy), item, common, cards)


def _loses(several: Iterable[Try]) -> bool:
    several = list(several)
    sent = sum(item.way.sent for item in several)
    lost = sum(item.lost for item in several)
    return lost >= LOST_SHARE * sent > 0 or all(item.lost_pings >= LOST_PINGS for item in several)


def spoken_rate(mbps: float | None) -> str:
    """A rate as people say it."""
    if mbps is None:
        return "nothing"
    return f"{mbps / 1000:.3g} Gbit/s" if mbps >= 1000 else f"{mbps:.3g} Mbit/s"


def spoken_time(seconds: float) -> str:
    """A round trip as people say it."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
