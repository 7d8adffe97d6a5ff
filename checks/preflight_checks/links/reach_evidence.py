"""The results of all connections, sorted: evidence for a link, against it, or neither."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.analysis.link_matrix import Cell
from preflight.model.recording import FactRow, Facts, Unavailable
from preflight.plugins.memo import memoize
from preflight_checks.links.arp_conflicts import disputed_pairs
from preflight_checks.links.carrier_losses import nodes_without_steady_carrier
from preflight_checks.links.dial_requests import cells
from preflight_checks.network.names import misresolved
from preflight_checks.probes.links import Dialled, Target, dial

#: Symptoms of failed connections, for messages.
STATUS_TEXTS = {
    "filtered": "get no response (filtered: packets are dropped on the way)",
    "refused": "are refused",
    "prohibited": "are rejected with an ICMP message (by a firewall, or by a router without a route)",
    "unresolved": "fail: the name does not resolve",
    "no-route": "have no route",
    "silent": "are accepted, but get no response",
    "reset": "are reset",
    "stranger": "are answered by another program",
}
#: Not dialled, because the listener or the time was lacking.
NOT_TRIED = ("unbound", "untried")


@dataclass(frozen=True)
class DialEvidence:
    """Every dialled port of every pair.

    Args:
        tried: those that show whether the peer can be reached.
        failing: all that failed.
        other_address: no connection, because the host name resolves to something else there.
        other_machine: no connection, because another machine answers for the address.
        no_carrier: no connection, while one of the two nodes lost its carrier.
    """

    every: Sequence[Cell[Target]]
    tried: Sequence[Cell[Target]]
    failing: Sequence[Cell[Target]]
    other_address: Sequence[Cell[Target]]
    other_machine: Sequence[Cell[Target]]
    no_carrier: Sequence[Cell[Target]] = ()


@memoize
def reach(facts: Facts) -> DialEvidence:
    """The results of all dialled ports, sorted."""
    every = cells(facts)
    # A large fleet dials a hundred thousand ports, and nearly all of them answer.
    failing = [c for c in every if c.result.status != "ok"]
    wrong = misresolved(facts)
    nameless = [c for c in failing if c.result.status in STATUS_TEXTS and (c.source, c.result.host) in wrong]
    disputed = disputed_pairs(facts)
    used = [c for c in failing if c.result.status in STATUS_TEXTS and frozenset(c.pair) in disputed]
    unsteady = nodes_without_steady_carrier(facts)
    cut = [
        c
        for c in failing
        if unsteady.intersection(c.pair) and c.result.status in STATUS_TEXTS and frozenset(c.pair) not in disputed
    ]
    left_out = {id(c) for c in (*nameless, *used, *cut)} | {id(c) for c in failing if c.result.status in NOT_TRIED}
    tried = [c for c in every if id(c) not in left_out] if left_out else every
    return DialEvidence(every, tried, failing, nameless, used, cut)


def nodes_without_dial(facts: Facts) -> Iterator[tuple[FactRow[Dialled], Unavailable]]:
    """The nodes that could not dial any peer, each with the reason."""
    for seen in facts.each(dial):
        if isinstance(seen.fact, Unavailable) and not seen.params.get("look"):
            yield seen, seen.fact
