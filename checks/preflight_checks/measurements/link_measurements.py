"""Measurements of the link stage: round trips, throughput and losses of each link, and of each node over its links."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from preflight.analysis.link_matrix import Pair
from preflight.model.job import Job
from preflight.model.measurements import Measurements, Quantity
from preflight.model.recording import Facts, Fleet
from preflight_checks.links.fleet_comparison import Measurement, measurements_of

LINK_BANDWIDTH = Quantity("link_bandwidth", "throughput of a link", "bits_per_second", better="higher", share=0.1)
LINK_LATENCY = Quantity("link_latency", "round trip of a link", "seconds", least=10e-6, share=0.25)
LINK_LOST = Quantity("link_lost_datagrams", "share of datagrams that a link lost", least=0.004)
NODE_BANDWIDTH = Quantity("node_bandwidth", "throughput over its links", "bits_per_second", better="higher", share=0.05)
NODE_LATENCY = Quantity("node_latency", "round trip over its links", "seconds", least=5e-6, share=0.15)
NODE_LOST = Quantity("node_lost_datagrams", "share of datagrams lost on its links", least=0.002)
NODE_RETRANSMITS = Quantity("node_retransmits", "share of segments that its links sent again", least=0.002)


def of_links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Measurements]:
    """The measurements of each direction, and the median over the links of each node.

    Of two measurements of a link the better one counts: the worse one had something else to wait for.
    """
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
    for quantity, of_node, values in (
        (LINK_BANDWIDTH, NODE_BANDWIDTH, bandwidth),
        (LINK_LATENCY, NODE_LATENCY, latency),
        (LINK_LOST, NODE_LOST, lost),
    ):
        yield from _of_pairs(quantity, values)
        yield from _of_nodes(of_node, values)
    yield from _of_nodes(NODE_RETRANSMITS, resent)


def _resent(item: Measurement) -> float | None:
    direction = item.direction
    if direction.retransmitted is None or not direction.segments:
        return None
    return direction.retransmitted / direction.segments


def _of_pairs(quantity: Quantity, values: Mapping[Pair, float]) -> Iterator[Measurements]:
    if values:
        pairs = sorted(values)
        yield Measurements(
            quantity, tuple(a for a, _ in pairs), tuple(values[pair] for pair in pairs), tuple(b for _, b in pairs)
        )


def _of_nodes(quantity: Quantity, values: Mapping[Pair, float]) -> Iterator[Measurements]:
    of_node: dict[str, list[float]] = {}
    for pair, value in values.items():
        for node in pair:
            of_node.setdefault(node, []).append(value)
    if of_node:
        nodes = sorted(of_node)
        yield Measurements(quantity, tuple(nodes), tuple(statistics.median(of_node[node]) for node in nodes))
