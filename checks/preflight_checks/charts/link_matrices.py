"""The links between nodes as heat maps and as numbers: reachability, round-trip times, throughput and losses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from preflight._util.sequences import grouped
from preflight.analysis.link_matrix import Cell, Pair
from preflight.model.charts import Mark, Matrix
from preflight.model.job import Job
from preflight.model.measurements import Measurements
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.plugins.claim_text import counted
from preflight_checks.charts.node_tables import QUANTITIES, cell_text, node_measurements, round_digits, sample_of
from preflight_checks.links.dial_requests import FREE, SPREAD
from preflight_checks.links.fleet_comparison import JudgedDirection, Measurement, judged_directions, measurements_of
from preflight_checks.links.reachability import NOT_TRIED, dial_evidence, nodes_without_dial
from preflight_checks.plans import table
from preflight_checks.probes.link_quality import measure
from preflight_checks.probes.links import Target

State = Literal["ok", "bad", "unknown"]
#: In a large fleet every bad link is marked, and a sample of the others up to this many marks in all.
MAX_MARKS = 16_000
_OTHER_ADDRESS, _OTHER_MACHINE, _NO_CARRIER = (
    "the name resolves to a different address there",
    "a different machine responds at this address",
    "an interface lost its carrier meanwhile",
)
_LATENCY, _BANDWIDTH = ("late", "unsteady"), ("slow", "lossy", "narrow")


@dataclass(frozen=True, slots=True)
class _Direction:
    state: State
    value: float | None = None
    why: str = ""


_OPEN = _Direction("ok")


def links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Matrix]:
    """Yield the three matrices, as far as they were measured. A row is the node that connects, a column its peer."""
    connected = _direction_by_pair(facts)
    if connected:
        states = [direction.state for direction in connected.values()]
        note = (
            f"Of {counted(len(fleet.nodes) * (len(fleet.nodes) - 1), 'direction')} between "
            f"{counted(len(fleet.nodes), 'node')}, {len(states)} were tried over TCP: {states.count('ok')} are open, "
            f"{states.count('bad')} are not, {states.count('unknown')} are unknown"
        )
        yield _matrix("links.reach", "Reachability", note, "", fleet, connected)
    measured, missing = judged_directions(facts), _unmeasured_pairs(facts)
    if not measured:
        return
    trips = {item.pair: _direction(item, _LATENCY, _trip_us(item)) for item in measured}
    note = f"Median round trips of small messages over TCP, {_coverage_text(trips, fleet)}"
    yield _matrix("links.latency", "Round trips", note, "µs", fleet, {**missing, **trips})
    rates = {item.pair: _direction(item, _BANDWIDTH, _rate_gbps(item)) for item in measured}
    note = f"Throughput of one and of several streams over TCP, {_coverage_text(rates, fleet)}"
    yield _matrix("links.bandwidth", "Bandwidth", note, "Gbit/s", fleet, {**missing, **rates})


def _matrix(id: str, title: str, note: str, unit: str, fleet: Fleet, directions: Mapping[Pair, _Direction]) -> Matrix:
    names = tuple(node.name for node in fleet.nodes)
    place = {name: number for number, name in enumerate(names)}
    known = {(place[a], place[b]): direction for (a, b), direction in directions.items() if a in place and b in place}
    kept = sample_of(sorted(known), MAX_MARKS, lambda pair: known[pair].state != "ok")
    if len(kept) < len(known):
        note += f"; {len(kept)} of these {len(known)} are shown, bad and unknown ones first"
    marks = ((pair, known[pair]) for pair in kept)
    found = tuple(
        Mark(row, column, direction.value, direction.state, direction.why) for (row, column), direction in marks
    )
    return Matrix(id, title, f"{note}.", unit, names, names, found)


# Reachability


def _direction_by_pair(facts: Facts) -> dict[Pair, _Direction]:
    """Return every pair that was tried. A pair is bad if one of its ports fails."""
    known = dial_evidence(facts)
    by_pair = grouped((cell.pair, cell) for cell in known.every)
    found = {
        (seen.node, peer): _Direction("unknown", None, cell_text(reason.reason))
        for seen, reason in nodes_without_dial(facts)
        for peer in seen.peers
    }
    inconclusive = {
        **{id(cell): _OTHER_ADDRESS for cell in known.other_address},
        **{id(cell): _OTHER_MACHINE for cell in known.other_machine},
        **{id(cell): _NO_CARRIER for cell in known.no_carrier},
        **{id(cell): _status_text(cell) for cell in known.failing if cell.result.status in NOT_TRIED},
    }
    return found | {pair: _direction_of(cells, inconclusive) for pair, cells in by_pair.items()}


def _direction_of(cells: Sequence[Cell[Target]], inconclusive: Mapping[int, str]) -> _Direction:
    if all(cell.result.status == "ok" for cell in cells):
        return _OPEN
    bad = [cell for cell in cells if cell.result.status != "ok" and id(cell) not in inconclusive]
    if bad:
        return _Direction("bad", None, _status_with_ports(bad, cells, _status_text))
    return _Direction(
        "unknown",
        None,
        _status_with_ports([c for c in cells if id(c) in inconclusive], cells, lambda cell: inconclusive[id(cell)]),
    )


def _status_with_ports(
    failing: Iterable[Cell[Target]], cells: Sequence[Cell[Target]], status_text: Callable[[Cell[Target]], str]
) -> str:
    """Return the status, such as `refused`; with the failing ports if other ports of the pair are open."""
    ports = grouped((status_text(cell), cell.label) for cell in failing)
    alone = all(cell.label in (FREE, SPREAD) for cell in cells)
    whole = len(ports) == 1 and len(next(iter(ports.values()))) == len(cells)
    if alone or whole:
        return next(iter(ports))
    return "; ".join(f"{what} on {' and '.join(sorted(labels))}" for what, labels in sorted(ports.items()))


def _status_text(cell: Cell[Target]) -> str:
    status = cell.result.status
    return str(table("connection_statuses").get(status, {}).get("brief", status))


# Measurements


def _trip_us(item: JudgedDirection) -> float | None:
    return round_digits(min(look.quality.median_s for look in item.measurements) * 1e6)


def _rate_gbps(item: JudgedDirection) -> float | None:
    rates = [look.rate_mbps for look in item.measurements if look.rate_mbps is not None]
    return round_digits(max(rates) / 1e3) if rates else None


def _direction(item: JudgedDirection, kinds: Sequence[str], value: float | None) -> _Direction:
    """Return one direction, as the link checks evaluate measurements of these `kinds`."""
    wrong = [kind for kind in kinds if kind in item.kinds]
    if wrong:
        return _Direction("bad", value, ", ".join(wrong))
    if any(kind in item.inconclusive for kind in kinds):
        return _Direction("unknown", value, "inconclusive: host busy")
    if any(kind in item.unconfirmed for kind in kinds):
        return _Direction("unknown", value, "an outlier that was not measured again")
    return _Direction("ok", value) if value is not None else _Direction("unknown", None, "no transfer completed")


def _unmeasured_pairs(facts: Facts) -> dict[Pair, _Direction]:
    """Return the pairs whose measurement produced no result."""
    return {
        (row.node, peer): _Direction("unknown", None, cell_text(row.fact.reason))
        for row in facts.each(measure)
        if isinstance(row.fact, Unavailable)
        for peer in row.peers
    }


def _coverage_text(directions: Mapping[Pair, _Direction], fleet: Fleet) -> str:
    """Return the number of measured pairs out of all pairs, as a note on a chart."""
    pairs = len({frozenset(pair) for pair in directions})
    return f"measured between {pairs} of {len(fleet.nodes) * (len(fleet.nodes) - 1) // 2} pairs of nodes"


def measure_links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Measurements]:
    """Yield each direction's measurements (the better of two) and the median over the links of each node."""
    measured = measurements_of(facts)
    bandwidth = {
        pair: max(rates) * 1e6
        for pair, several in measured.items()
        if (rates := [item.rate_mbps for item in several if item.rate_mbps is not None])
    }
    latency = {pair: min(item.quality.median_s for item in several) for pair, several in measured.items()}
    lost = {
        pair: min(shares)
        for pair, several in measured.items()
        if (shares := [item.lost / item.direction.sent for item in several if item.direction.arrived])
    }
    resent = {
        pair: min(shares)
        for pair, several in measured.items()
        if (shares := [share for item in several if (share := _resent(item)) is not None])
    }
    for what, values in (("bandwidth", bandwidth), ("latency", latency), ("lost_datagrams", lost)):
        yield from _pair_measurements(f"link_{what}", values)
        yield from _node_medians(f"node_{what}", values)
    yield from _node_medians("node_retransmits", resent)


def _resent(item: Measurement) -> float | None:
    direction = item.direction
    if direction.retransmitted is None or not direction.segments:
        return None
    return direction.retransmitted / direction.segments


def _pair_measurements(name: str, values: Mapping[Pair, float]) -> Iterator[Measurements]:
    if values:
        pairs = sorted(values)
        nodes, peers = zip(*pairs, strict=True)
        yield Measurements(QUANTITIES[name], nodes, tuple(values[pair] for pair in pairs), peers)


def _node_medians(name: str, values: Mapping[Pair, float]) -> Iterator[Measurements]:
    of_node = grouped((node, value) for pair, value in values.items() for node in pair)
    return node_measurements(name, {node: statistics.median(of_node[node]) for node in sorted(of_node)})
