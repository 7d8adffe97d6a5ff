"""The ways between nodes as heat maps: who reaches whom, round trips, and what gets through.

Nothing is judged here: a mark is bad, or not known, where the checks of links say so. Units are the same in every run,
so that two of them can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from preflight.exhibit import Mark, Matrix
from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.matrix import Cell, Pair
from preflight.recording import Facts, Fleet, Unavailable
from preflight_checks.exhibits.telling import brief, many, short, thinned
from preflight_checks.links.dialling import FREE
from preflight_checks.links.quality import Judged, judged
from preflight_checks.links.reach import NOT_TRIED, Reach, reach, undialled
from preflight_checks.probes.link_quality import measure
from preflight_checks.probes.links import Target

State = Literal["ok", "bad", "unknown"]
#: Of a large fleet every way that is not well is marked, and of the others so many that there are this many marks.
MOST_MARKS = 16_000
#: Statuses of a connection that are no words by themselves.
_WORDS = {
    "no-route": "no route",
    "stranger": "another program answers",
    "silent": "accepted, then silence",
    "unbound": "nobody could listen there",
    "untried": "not tried in time",
}
_NAMELESS, _TAKEN = "the name means something else there", "another machine answers for the address"
_LATENCY, _BANDWIDTH = ("late", "unsteady"), ("slow", "lossy", "narrow")


@dataclass(frozen=True, slots=True)
class _Way:
    """What is to be marked for one direction between two nodes."""

    state: State
    value: float | None = None
    why: str = ""


_OPEN = _Way("ok")


def links(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Matrix]:
    """The three matrices, as far as anything was tried. A row is who asks, a column whom."""
    connected = _connected(facts)
    if connected:
        states = [way.state for way in connected.values()]
        note = (
            f"Of {many(len(fleet.nodes) * (len(fleet.nodes) - 1), 'way')} between {many(len(fleet.nodes), 'node')} "
            f"{len(states)} were tried over TCP: {states.count('ok')} are open, {states.count('bad')} are not, "
            f"{states.count('unknown')} could not be told"
        )
        yield _matrix("links.reach", "Who reaches whom", note, "", fleet, connected)
    measured, missing = judged(facts), _unmeasured(facts)
    if not measured:
        return
    trips = {item.pair: _way(item, _LATENCY, _trip_us(item)) for item in measured}
    note = f"Median round trips of small messages over TCP, {_covered(trips, fleet)}"
    yield _matrix("links.latency", "Round trips", note, "µs", fleet, {**missing, **trips})
    rates = {item.pair: _way(item, _BANDWIDTH, _rate_gbps(item)) for item in measured}
    note = f"What one stream or several carried over TCP, {_covered(rates, fleet)}"
    yield _matrix("links.bandwidth", "Bandwidth", note, "Gbit/s", fleet, {**missing, **rates})


def _matrix(id: str, title: str, note: str, unit: str, fleet: Fleet, ways: Mapping[Pair, _Way]) -> Matrix:
    names = tuple(node.name for node in fleet.nodes)
    place = {name: number for number, name in enumerate(names)}
    known = {(place[a], place[b]): way for (a, b), way in ways.items() if a in place and b in place}
    kept = thinned(sorted(known), MOST_MARKS, lambda pair: known[pair].state != "ok")
    if len(kept) < len(known):
        note += f"; {len(kept)} of these {len(known)} are marked, first those that are not well"
    marks = ((pair, known[pair]) for pair in kept)
    found = tuple(Mark(row, column, way.value, way.state, way.why) for (row, column), way in marks)
    return Matrix(id, title, f"{note}.", unit, names, names, found)


# Who reaches whom


def _connected(facts: Facts) -> dict[Pair, _Way]:
    """Every pair that was dialled: bad where one of its ports is."""
    known = reach(facts)
    by_pair: dict[Pair, list[Cell[Target]]] = {}
    for cell in known.every:
        by_pair.setdefault(cell.pair, []).append(cell)
    found = {
        (seen.node, peer): _Way("unknown", None, brief(why.reason))
        for seen, why in undialled(facts)
        for peer in seen.peers
    }
    puzzling = _puzzling(known)
    return found | {pair: _connection(cells, puzzling) for pair, cells in by_pair.items()}


def _puzzling(known: Reach) -> dict[int, str]:
    """By identity, the cells that say nothing of a way, and why."""
    return {
        **{id(cell): _NAMELESS for cell in known.nameless},
        **{id(cell): _TAKEN for cell in known.taken},
        **{id(cell): _word(cell) for cell in known.failing if cell.result.status in NOT_TRIED},
    }


def _connection(cells: Sequence[Cell[Target]], puzzling: Mapping[int, str]) -> _Way:
    if all(cell.result.status == "ok" for cell in cells):
        return _OPEN
    bad = [cell for cell in cells if cell.result.status != "ok" and id(cell) not in puzzling]
    if bad:
        return _Way("bad", None, _said(bad, cells, _word))
    return _Way("unknown", None, _said([c for c in cells if id(c) in puzzling], cells, lambda cell: puzzling[id(cell)]))


def _said(some: Iterable[Cell[Target]], every: Sequence[Cell[Target]], word: Callable[[Cell[Target]], str]) -> str:
    """`refused`, and on which ports where others of the pair are well."""
    ports: dict[str, list[str]] = {}
    for cell in some:
        ports.setdefault(word(cell), []).append(cell.label)
    alone = len(every) == 1 and every[0].label == FREE
    whole = len(ports) == 1 and len(next(iter(ports.values()))) == len(every)
    if alone or whole:
        return next(iter(ports))
    return "; ".join(f"{what} on {' and '.join(sorted(labels))}" for what, labels in sorted(ports.items()))


def _word(cell: Cell[Target]) -> str:
    return _WORDS.get(cell.result.status, cell.result.status)


# What was measured


def _trip_us(item: Judged) -> float | None:
    return short(min(look.quality.median_s for look in item.looks) * 1e6)


def _rate_gbps(item: Judged) -> float | None:
    rates = [look.rate_mbps for look in item.looks if look.rate_mbps is not None]
    return short(max(rates) / 1e3) if rates else None


def _way(item: Judged, kinds: Sequence[str], value: float | None) -> _Way:
    """One direction in respect of `kinds`, as the checks of links judge it."""
    wrong = [kind for kind in kinds if kind in item.kinds]
    if wrong:
        return _Way("bad", value, ", ".join(wrong))
    if any(kind in item.inconclusive for kind in kinds):
        return _Way("unknown", value, "inconclusive: host busy")
    if any(kind in item.once for kind in kinds):
        return _Way("unknown", value, "out of line once, not measured again")
    return _Way("ok", value) if value is not None else _Way("unknown", None, "no transfer came to its end")


def _unmeasured(facts: Facts) -> dict[Pair, _Way]:
    """The pairs whose measurement gave nothing."""
    return {
        (seen.node, peer): _Way("unknown", None, brief(seen.fact.reason))
        for seen in facts.each(measure)
        if isinstance(seen.fact, Unavailable)
        for peer in seen.peers
    }


def _covered(ways: Mapping[Pair, _Way], fleet: Fleet) -> str:
    """How many pairs were measured, of how many."""
    pairs = len({frozenset(pair) for pair in ways})
    return f"measured between {pairs} of {len(fleet.nodes) * (len(fleet.nodes) - 1) // 2} pairs of nodes"
