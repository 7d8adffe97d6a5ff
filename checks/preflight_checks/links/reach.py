"""Who reached whom, sorted: what speaks for or against a way between two nodes, and what tells nothing of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.lazy.dataclasses import dataclass
from preflight.matrix import Cell
from preflight.once import once
from preflight.recording import Facts, Seen, Unavailable
from preflight_checks.links.dialling import cells
from preflight_checks.network.names import misnamed
from preflight_checks.network.neighbours import disputed_pairs
from preflight_checks.probes.links import Dialled, Target, dial

#: How a failed connection shows itself, for messages.
WORDS = {
    "filtered": "get no answer (filtered: dropped on the way)",
    "refused": "are refused",
    "unresolved": "cannot be dialled: the name does not resolve",
    "no-route": "have no route",
    "silent": "are accepted, but then nobody answers",
    "reset": "are reset",
    "stranger": "are answered by another program",
}
#: Nothing was dialled, for want of a listener or of time.
NOT_TRIED = ("unbound", "untried")


@dataclass(frozen=True)
class Reach:
    """Every dialled port of every pair.

    Args:
        tried: those that tell whether the peer can be reached.
        failing: all that are not in order.
        nameless: no connection came about, to a host that means something else there.
        taken: no connection came about, to an address for which another machine answers.
    """

    every: Sequence[Cell[Target]]
    tried: Sequence[Cell[Target]]
    failing: Sequence[Cell[Target]]
    nameless: Sequence[Cell[Target]]
    taken: Sequence[Cell[Target]]


@once
def reach(facts: Facts) -> Reach:
    """What came of all that was dialled."""
    every = cells(facts)
    # A large fleet dials a hundred thousand ports, of which nearly all answer.
    failing = [c for c in every if c.result.status != "ok"]
    wrong = misnamed(facts)
    nameless = [c for c in failing if c.result.status in WORDS and (c.source, c.result.host) in wrong]
    disputed = disputed_pairs(facts)
    taken = [c for c in failing if c.result.status in WORDS and frozenset(c.pair) in disputed]
    left_out = {id(c) for c in (*nameless, *taken)} | {id(c) for c in failing if c.result.status in NOT_TRIED}
    tried = [c for c in every if id(c) not in left_out] if left_out else every
    return Reach(every, tried, failing, nameless, taken)


def undialled(facts: Facts) -> Iterator[tuple[Seen[Dialled], Unavailable]]:
    """The nodes that could not dial their peers at all, each with why."""
    for seen in facts.each(dial):
        if isinstance(seen.fact, Unavailable) and not seen.params.get("look"):
            yield seen, seen.fact
