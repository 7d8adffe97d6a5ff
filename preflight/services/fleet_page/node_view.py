"""One node, run by run, beside equal nodes; and links over time, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from preflight.commands.history.past import Past, Series, Values, changes_of, peers_of
from preflight.commands.history.stories import health_of, own_failures
from preflight.model.measurements import Quantity
from preflight.reporters.html.drawing.scales import Scale, scale_of, share
from preflight.reporters.html.drawing.shapes import Swatch
from preflight.reporters.text.groups import count
from preflight.services.fleet_page.fleet_view import (
    OUTCOMES,
    Block,
    ChangeLine,
    Pages,
    curve,
    day,
    moment,
    only_the_newest,
    stretches,
    strip,
    value_of,
)
from preflight.services.fleet_page.history_queries import LinkSeries

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


#: Links of a page.
PAGE_LINKS = 25


@dataclass(frozen=True, slots=True)
class LinkLine:
    """A direction of a link. `change` compares its newest value with its own median."""

    node: str
    peer: str
    blocks: tuple[Block, ...]
    latest: str
    when: str
    usual: str
    change: str
    runs: int
    worse: bool


@dataclass(frozen=True, slots=True)
class LinksView:
    """Everything that the page of links shows, in words."""

    title: str
    note: str
    period: tuple[str, str]
    legend: tuple[Swatch, ...]
    lines: tuple[LinkLine, ...]
    pages: Pages


def links_view(past: Past, quantity: Quantity, links: Sequence[LinkSeries], page: int) -> LinksView:
    """Build the page: the links whose newest value is worst, compared with the median of all links in that run."""
    beside = _medians_of_links(links, len(past.runs))
    ordered = sorted(links, key=lambda item: (-_badness(item, quantity, beside), item.node, item.peer))
    start = (page - 1) * PAGE_LINKS
    shown = ordered[start : start + PAGE_LINKS]
    values = [value for item in links for value in item.values if value is not None]
    scale = scale_of(values) if values else None
    better = {"higher": "more is better", "lower": "less is better"}.get(quantity.better, "")
    return LinksView(
        title=f"{quantity.title[:1].upper()}{quantity.title[1:]}",
        note=f"The links whose newest value is worst, compared with the others of its run, come first; {better}."
        if better
        else "By name of the node.",
        period=(day(past.runs[0].began), day(past.runs[-1].began)),
        legend=tuple(_legend(scale, quantity)),
        lines=tuple(_line(item, past, quantity, scale) for item in shown),
        pages=Pages(page, max(1, -(-len(ordered) // PAGE_LINKS)), len(ordered)),
    )


def _medians_of_links(links: Sequence[LinkSeries], runs: int) -> list[float | None]:
    found: list[list[float]] = [[] for _ in range(runs)]
    for item in links:
        for place, value in enumerate(item.values):
            if value is not None:
                found[place].append(value)
    return [median(values) if values else None for values in found]


def _newest(item: LinkSeries) -> int:
    return max(place for place, value in enumerate(item.values) if value is not None)


def _badness(item: LinkSeries, quantity: Quantity, beside: Sequence[float | None]) -> float:
    """How many times worse than the median of its run the newest value is; 0 for a quantity that is neither."""
    place = _newest(item)
    value, usual = item.values[place], beside[place]
    if value is None or usual is None or quantity.better not in ("higher", "lower"):
        return 0.0
    if quantity.better == "higher":
        return usual / value if value > 0 else float("inf")
    return value / usual if usual > 0 else value


def _legend(scale: Scale | None, quantity: Quantity) -> list[Swatch]:
    if scale is None:
        return []
    edges = (scale.minimum, *scale.bounds, scale.maximum)
    styles = [style for style, _ in scale.labels("")]
    found = [
        Swatch(
            style,
            f"{value_of(quantity, edges[n])} to {value_of(quantity, edges[min(n + 1, len(edges) - 1)])}",
            str(n + 1),
        )
        for n, style in enumerate(styles)
    ]
    return [*found, Swatch("nothing", "not measured", "·")]


def _line(item: LinkSeries, past: Past, quantity: Quantity, scale: Scale | None) -> LinkLine:
    known = [value for value in item.values if value is not None]
    place, usual = _newest(item), median(known)
    latest = item.values[place]
    assert latest is not None and scale is not None
    change = (latest - usual) / abs(usual) if usual else 0.0
    worse = change < -0.1 if quantity.better == "higher" else change > 0.1
    size = len(past.runs)
    return LinkLine(
        item.node,
        item.peer,
        tuple(
            Block(
                share(at, size),
                share(1, size),
                scale.style(value),
                f"{day(past.runs[at].began)}: {value_of(quantity, value)}",
            )
            for at, value in enumerate(item.values)
            if value is not None
        ),
        value_of(quantity, latest),
        day(past.runs[place].began),
        value_of(quantity, usual),
        f"{change:+.0%}" if abs(change) >= 0.005 else "±0%",
        len(known),
        worse and quantity.better != "none",
    )
