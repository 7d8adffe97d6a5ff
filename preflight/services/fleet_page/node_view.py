"""One node: its outcomes run by run, its faults, its measurements beside those of equal nodes, and what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from preflight.commands.history.failures import health_of, own_failures
from preflight.commands.history.past import Past, Series, Values
from preflight.commands.history.peers import changes_of, peers_of
from preflight.reporters.html.drawing.shapes import Swatch
from preflight.reporters.text.groups import count
from preflight.services.fleet_page.fleet_view import ChangeLine, Pages, only_the_newest
from preflight.services.fleet_page.showing import (
    OUTCOMES,
    Block,
    curve,
    day,
    moment,
    stretches,
    strip,
    value_of,
)

#: Stretches of a page.
PAGE_STRETCHES = 40
_KINDS = {"passing": "go", "failing": "no-go", "unknown": "incomplete"}


@dataclass(frozen=True, slots=True)
class StretchLine:
    """Runs in a row with the same outcome and the same faults."""

    period: str
    runs: int
    style: str
    sign: str
    word: str
    faults: tuple[tuple[str, str], ...]
    run: int


@dataclass(frozen=True, slots=True)
class QuantityLine:
    """A quantity of the node: its curve, and the median of its peers as a second one."""

    title: str
    latest: str
    when: str
    usual: str
    peers: str
    span: str
    path: str
    peer_path: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything that the page of a node shows, in words."""

    name: str
    kind: str
    word: str
    sentence: str
    facts: tuple[tuple[str, str], ...]
    strip: tuple[Block, ...]
    period: tuple[str, str]
    legend: tuple[Swatch, ...]
    stretches: tuple[StretchLine, ...]
    pages: Pages
    quantities: tuple[QuantityLine, ...]
    peers_note: str
    changes: tuple[ChangeLine, ...]
    more_changes: int
    notices: tuple[str, ...]


def peers_in(past: Past, node: str) -> tuple[str, ...]:
    """The other nodes with the same hardware."""
    return next((tuple(n for n in group if n != node) for group in peers_of(past).values() if node in group), ())


def node_view(
    past: Past, node: str, series: Sequence[Series], peers: Sequence[str], page: int, left_out: int
) -> NodeView:
    """Build the page of a node that is in the past."""
    health = health_of(past, own_failures(past))[node]
    states = past.states[node]
    times = [run.began for run in past.runs]
    word = OUTCOMES[health.state][2]
    lines = _stretch_lines(past, node)
    start = (page - 1) * PAGE_STRETCHES
    properties = next(
        (past.properties.get(number, {}) for number in reversed(past.sets[node]) if number is not None), {}
    )
    changes = [
        ChangeLine(moment(times[item.run]), item.name, item.before, item.after, node, 1)
        for item in changes_of(past)
        if item.node == node
    ]
    changes.reverse()
    last = max(place for place, state in enumerate(states) if state is not None)
    notices = []
    if last < len(states) - 1:
        notices.append(f"The newest run did not examine this node; it was last seen on {moment(times[last])}.")
    if left_out:
        notices.append(only_the_newest(len(past.runs), left_out))
    facts = [
        ("Runs", f"{health.runs:,}"),
        ("Failed by itself", f"{count(health.failures, 'time')}" if health.failures else "never"),
    ]
    if health.healthy_since is not None:
        facts.append(("Healthy since", day(times[health.healthy_since])))
    if health.failed_in:
        facts.append(("Last failure", day(times[health.failed_in[-1]])))
    if health.mean_time_between_failures_s is not None:
        facts.append(("Mean time between failures", f"{health.mean_time_between_failures_s / 86_400:.1f} days"))
    return NodeView(
        name=node,
        kind=_KINDS.get(health.state, "incomplete"),
        word=word.capitalize(),
        sentence=f"on {moment(times[last])}",
        facts=(*facts, *sorted(properties.items())),
        strip=strip(states, times),
        period=(day(times[0]), day(times[-1])),
        legend=tuple(Swatch(style, word, sign) for style, sign, word in OUTCOMES.values()),
        stretches=tuple(lines[start : start + PAGE_STRETCHES]),
        pages=Pages(page, max(1, -(-len(lines) // PAGE_STRETCHES)), len(lines)),
        quantities=tuple(_quantity_line(item, node, peers, past) for item in series),
        peers_note=f"Peers: {count(len(peers), 'other node')} with the same hardware."
        if peers
        else "No other node has the same hardware.",
        changes=tuple(changes[:100]),
        more_changes=max(0, len(changes) - 100),
        notices=tuple(notices),
    )


def _stretch_lines(past: Past, node: str) -> list[StretchLine]:
    """What the node had, the newest first. Runs without it are left out."""
    by_run: dict[int, list[tuple[str, str]]] = {}
    for failure in past.failures:
        if failure.node == node:
            by_run.setdefault(failure.run, []).append((failure.rule or "no answer", failure.message))
    keys = [None if state is None else f"{state}\0{by_run.get(place)}" for place, state in enumerate(past.states[node])]
    found = []
    for first, last, key in stretches(keys):
        state = past.states[node][last]
        if key is None or state is None:
            continue
        style, sign, word = OUTCOMES[state]
        began, ended = day(past.runs[first].began), day(past.runs[last].began)
        period = moment(past.runs[first].began) if first == last else f"{began} to {ended}"
        found.append(
            StretchLine(period, last - first + 1, style, sign, word, tuple(by_run.get(last, ())), past.runs[last].id)
        )
    found.reverse()
    return found


def _quantity_line(item: Series, node: str, peers: Sequence[str], past: Past) -> QuantityLine:
    quantity, own = item.quantity, item.values[node]
    others = _medians([item.values[name] for name in peers if name in item.values], len(past.runs))
    known = [value for value in own if value is not None]
    last = max(place for place, value in enumerate(own) if value is not None)
    drawn = [*known, *(value for value in others if value is not None)]
    low, high = min(drawn), max(drawn)
    latest, beside = own[last], others[last]
    assert latest is not None
    return QuantityLine(
        title=f"{quantity.title[:1].upper()}{quantity.title[1:]}",
        latest=value_of(quantity, latest),
        when=day(past.runs[last].began),
        usual=value_of(quantity, median(known)),
        peers="" if beside is None else value_of(quantity, beside),
        span=f"{value_of(quantity, min(known))} to {value_of(quantity, max(known))}",
        path=curve(own, low, high),
        peer_path=curve(others, low, high),
    )


def _medians(series: Sequence[Values], runs: int) -> Values:
    found: Values = []
    for place in range(runs):
        values = [value for item in series if (value := item[place]) is not None]
        found.append(median(values) if values else None)
    return found
