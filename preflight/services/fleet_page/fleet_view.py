"""The pages of the fleet and of one node: outcomes, faults, new faults, every run, and links over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import median
from typing import TypeVar

from preflight._util.sanitize import fold_nodes
from preflight._util.sequences import grouped
from preflight.commands.history.account import day
from preflight.commands.history.past import SOFTWARE, Past, Series, Values, changes_of, peers_of
from preflight.commands.history.stories import health_of, own_failures
from preflight.model.measurements import Quantity
from preflight.reporters.html.drawing.shapes import (
    BAD,
    OK,
    UNKNOWN,
    Picture,
    Scale,
    Swatch,
    format_number,
    picture_of,
    scale_of,
    share,
)
from preflight.reporters.text.groups import count
from preflight.services.fleet_page.history_queries import Fault, Filters, LinkSeries, RunCounts, counts_of

T = TypeVar("T")
#: Number of nodes on a page of the grid, and in a group.
PAGE_NODES = 2_000
GROUP = 25
#: Largest number of runs and changes on a page.
PAGE_RUNS, MAX_CHANGES = 30, 40
#: Largest number of nodes with a row of their own in the picture.
MAX_PICTURE_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class NodeCell:
    """A node in the grid. `title` expresses its colour and symbol in words."""

    name: str
    style: str
    symbol: str
    title: str
    state: str


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Some nodes of the grid, and their folded names."""

    label: str
    cells: tuple[NodeCell, ...]


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A property that changed on some nodes in the same run."""

    when: str
    name: str
    before: str
    after: str
    nodes: str
    count: int


@dataclass(frozen=True, slots=True)
class FaultLine:
    """A fault and its nodes. `new` are those that did not fail in the run before."""

    fault: Fault
    nodes: str
    count: int
    new: str


@dataclass(frozen=True, slots=True)
class Pages:
    """The position in a long list: the number of this page and the number of pages."""

    page: int
    pages: int
    total: int


def paginate(items: Sequence[T], page: int, size: int) -> tuple[Pages, Sequence[T]]:
    """Return the position in a long list, and the items on this page; pages have `size` items."""
    pages = Pages(page, max(1, -(-len(items) // size)), len(items))
    return pages, items[(page - 1) * size : page * size]


@dataclass(frozen=True, slots=True)
class FleetView:
    """The content of the fleet page, in words."""

    place: int
    kind: str
    word: str
    sentence: str
    about: str
    notices: tuple[str, ...]
    legend: tuple[Swatch, ...]
    groups: tuple[NodeGroup, ...]
    pages: Pages
    faults: tuple[FaultLine, ...]
    newly_failing: str
    recovered: str
    before: str
    picture: Picture | None
    picture_text: str
    period: tuple[str, str]
    changes: tuple[ChangeLine, ...]
    more_changes: int
    runs: tuple[RunCounts, ...]
    more_runs: int


def chosen_run(past: Past, filters: Filters) -> int | None:
    """Return the index of the chosen run, by default the newest one; None if the run is not in the period."""
    if filters.run is None:
        return len(past.runs) - 1
    return next((place for place, run in enumerate(past.runs) if run.id == filters.run), None)


def chosen_nodes(past: Past, filters: Filters, place: int) -> tuple[str, ...]:
    """Return the names of the nodes that the filters choose, sorted."""
    names = filters.names
    by_rule = {
        item.node for item in past.failures if filters.rule and filters.rule.lower() in (item.rule.lower(), item.name)
    }
    return tuple(
        node
        for node in past.nodes
        if (names is None or node in names)
        and (not filters.rule or node in by_rule)
        and (not filters.state or (past.states[node][place] or "absent") == filters.state)
    )


def fleet_view(past: Past, place: int, filters: Filters, faults: Sequence[Fault], left_out: int) -> FleetView:
    """Build the page about the run at index `place` and its `faults`; `left_out` older runs do not fit."""
    nodes = chosen_nodes(past, filters, place)
    states = {node: past.states[node][place] or "absent" for node in nodes}
    numbers = Counter(states.values())
    pages, shown = paginate(nodes, filters.page, PAGE_NODES)
    before = {node: past.states[node][place - 1] for node in nodes} if place else {}
    newly = [node for node in nodes if states[node] == "failing" and before.get(node) == "passing"]
    healed = [node for node in nodes if states[node] == "passing" and before.get(node) == "failing"]
    chosen = set(nodes)
    changes = _changes(past, chosen)
    runs = counts_of(past)[::-1]
    run = past.runs[place]
    return FleetView(
        place=place,
        kind="no-go" if numbers["failing"] else "incomplete" if numbers["unknown"] or not numbers["passing"] else "go",
        word=_word(numbers),
        sentence=_sentence(numbers, len(nodes)),
        about=f"{run.verb} of {moment(run.began)}, verdict {run.verdict}",
        notices=tuple(_notices(past, filters, left_out)),
        legend=_LEGEND,
        groups=tuple(_group(shown[at : at + GROUP], past, place) for at in range(0, len(shown), GROUP)),
        pages=pages,
        faults=tuple(_fault_line(fault, chosen, before) for fault in faults if not chosen.isdisjoint(fault.nodes)),
        newly_failing=fold_nodes(newly),
        recovered=fold_nodes(healed),
        before=moment(past.runs[place - 1].began) if place else "",
        picture=_picture(past, nodes) if len(past.runs) > 1 and nodes else None,
        picture_text=f"{count(len(nodes), 'node')} from top to bottom, "
        f"{count(len(past.runs), 'run')} from left to right",
        period=(day(past.runs[0].began), day(past.runs[-1].began)),
        changes=changes[:MAX_CHANGES],
        more_changes=max(0, len(changes) - MAX_CHANGES),
        runs=runs[:PAGE_RUNS],
        more_runs=max(0, len(runs) - PAGE_RUNS),
    )


def newest_only_notice(runs: int, left_out: int) -> str:
    """Return a sentence if a page does not show all runs of the period; empty if the page shows all."""
    return f"The period has {count(left_out, 'more run')}; only the newest {runs:,} are shown."


def _word(numbers: dict[str, int]) -> str:
    if numbers["failing"]:
        return f"{numbers['failing']:,} failing"
    if numbers["unknown"]:
        return f"{numbers['unknown']:,} unknown"
    return "All passing" if numbers["passing"] else "No outcome"


def _sentence(numbers: dict[str, int], total: int) -> str:
    words = [f"{numbers[state]:,} {word}" for state, (_, _, word) in OUTCOMES.items() if numbers[state]]
    return f"Of {count(total, 'node')}: {', '.join(words)}." if total else "No node is chosen."


def _notices(past: Past, filters: Filters, left_out: int) -> list[str]:
    found = []
    if left_out:
        found.append(newest_only_notice(len(past.runs), left_out))
    names = filters.names
    if names is not None:
        strange = sorted(names.difference(past.nodes))
        if strange:
            found.append(f"The history has no {fold_nodes(strange)[:300]} in this period.")
    return found


def _group(nodes: Sequence[str], past: Past, place: int) -> NodeGroup:
    label = nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"
    return NodeGroup(label, tuple(_cell(node, past.states[node], place) for node in nodes))


def _cell(node: str, states: Sequence[str | None], place: int) -> NodeCell:
    state = states[place] or "absent"
    style, symbol, word = OUTCOMES[state]
    failed = sum(found == "failing" for found in states)
    often = f", failed in {failed} of {sum(found is not None for found in states)} runs" if failed else ""
    return NodeCell(node, style, symbol, f"{node}: {word}{often}", state)


def _fault_line(fault: Fault, nodes: set[str], before: dict[str, str | None]) -> FaultLine:
    kept = [node for node in fault.nodes if node in nodes]
    new = [node for node in kept if before.get(node) == "passing"] if fault.status == "fail" else []
    return FaultLine(fault, fold_nodes(kept), len(kept), fold_nodes(new))


def _changes(past: Past, nodes: set[str]) -> tuple[ChangeLine, ...]:
    """Return the property changes of these nodes, newest first; drivers and kernels before other properties."""
    chosen = (change for change in changes_of(past) if change.node in nodes)
    together = grouped(((item.run, item.name, item.before, item.after), item.node) for item in chosen)
    ordered = sorted(together.items(), key=lambda item: (-item[0][0], item[0][1] not in SOFTWARE, item[0][1:]))
    return tuple(
        ChangeLine(moment(past.runs[run].began), name, before, after, fold_nodes(names), len(names))
        for (run, name, before, after), names in ordered
    )


def _picture(past: Past, nodes: Sequence[str]) -> Picture:
    """Draw every node as a row and every run as a column; in a large fleet a row is the worst of several nodes."""
    colors = {None: 0, "passing": 1, "unknown": 2, "failing": 3}
    size = -(-len(nodes) // MAX_PICTURE_ROWS)
    rows = [
        bytes(max(column) for column in zip(*([colors[state] for state in past.states[n]] for n in block), strict=True))
        for block in (nodes[at : at + size] for at in range(0, len(nodes), size))
    ]
    return picture_of(rows, (OK, UNKNOWN, BAD))


#: Class, symbol and word of each outcome. Heat maps in reports use the same symbols.
OUTCOMES = {
    "passing": ("ok", "✓", "passing"),
    "failing": ("bad", "×", "failing"),
    "unknown": ("unknown", "?", "unknown"),
    "absent": ("nothing", "·", "not in this run"),
}
_LEGEND = tuple(Swatch(style, word, symbol) for style, symbol, word in OUTCOMES.values())
_SCALED = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SYMBOLS = {"bits_per_second": "bit/s", "hertz": "Hz", "watts": "W", "bytes_per_second": "B/s"}
_PLAIN = {"seconds": "s", "celsius": "°C", "bytes": "bytes", "ratio": ""}


def moment(start_ns: int) -> str:
    """Return day and minute of a time in seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(start_ns, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def format_measurement(quantity: Quantity, value: float) -> str:
    """Format a value with its unit: `9.2 Gbit/s`, `45 µs`, `46 °C`."""
    symbol = _SYMBOLS.get(quantity.unit)
    if symbol is not None:
        factor, prefix = next(((f, p) for f, p in _SCALED if abs(value) >= f), (1.0, ""))
        return format_number(value / factor, prefix + symbol)
    number: float = int(value) if float(value).is_integer() and quantity.unit == "" else value
    return format_number(number, _PLAIN.get(quantity.unit, quantity.unit.replace("_", " ")))


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a strip, as a percentage of its width: its class, symbol and explanation."""

    at: str
    long: str
    style: str
    title: str


def strip(states: Sequence[str | None], times: Sequence[int]) -> tuple[Block, ...]:
    """Return the outcomes of a node from left to right, one block per run; equal neighbours share a block."""
    found = []
    for first, last, state in stretches(states):
        style, _, word = OUTCOMES[state or "absent"]
        period = day(times[first]) if first == last else f"{day(times[first])} to {day(times[last])}"
        found.append(Block(share(first, len(states)), share(last - first + 1, len(states)), style, f"{period}: {word}"))
    return tuple(found)


def stretches(states: Sequence[str | None]) -> list[tuple[int, int, str | None]]:
    """Return runs of equal neighbours: first index, last index, and value."""
    spans: list[tuple[int, int, str | None]] = []
    for place, state in enumerate(states):
        if spans and spans[-1][2] == state:
            spans[-1] = (spans[-1][0], place, state)
        else:
            spans.append((place, place, state))
    return spans


def curve(values: Sequence[float | None], low: float, high: float) -> str:
    """Return the path of a small curve in a box of 100 by 100, with gaps for missing values."""
    if len(values) < 2:
        return ""
    pieces, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        height = 50.0 if high <= low else 95 - 90 * (value - low) / (high - low)
        pieces.append(f"{pen}{100 * place / (len(values) - 1):.1f} {height:.1f}")
        # A value between two gaps is a point.
        if pen == "M":
            pieces.append("h.1")
        pen = "L"
    return "".join(pieces)


#: Largest number of stretches on a page.
PAGE_STRETCHES = 40
_KINDS = {"passing": "go", "failing": "no-go", "unknown": "incomplete"}


@dataclass(frozen=True, slots=True)
class StretchLine:
    """Consecutive runs with the same outcome and the same faults."""

    period: str
    run_count: int
    style: str
    symbol: str
    word: str
    faults: tuple[tuple[str, str], ...]
    last_run_id: int


@dataclass(frozen=True, slots=True)
class QuantityLine:
    """A quantity of the node: its curve, and a second curve for the median of its peers."""

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
    """The content of a node's page, in words."""

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
    """Return the other nodes with the same hardware."""
    return next((tuple(n for n in group if n != node) for group in peers_of(past).values() if node in group), ())


def node_view(
    past: Past, node: str, series: Sequence[Series], peers: Sequence[str], page: int, left_out: int
) -> NodeView:
    """Build the page of a node in the history."""
    health = health_of(past, own_failures(past))[node]
    states = past.states[node]
    times = [run.began for run in past.runs]
    word = OUTCOMES[health.state][2]
    pages, lines = paginate(_stretch_lines(past, node), page, PAGE_STRETCHES)
    changes = [
        ChangeLine(moment(times[item.run]), item.name, item.before, item.after, node, 1)
        for item in changes_of(past)
        if item.node == node
    ]
    changes.reverse()
    last = _newest_index(states)
    notices = []
    if last < len(states) - 1:
        notices.append(f"The newest run did not examine this node; it was last seen on {moment(times[last])}.")
    if left_out:
        notices.append(newest_only_notice(len(past.runs), left_out))
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
        facts=(*facts, *sorted(past.last_properties(node).items())),
        strip=strip(states, times),
        period=(day(times[0]), day(times[-1])),
        legend=_LEGEND,
        stretches=tuple(lines),
        pages=pages,
        quantities=tuple(_quantity_line(item, node, peers, past) for item in series),
        peers_note=f"Peers: {count(len(peers), 'other node')} with the same hardware."
        if peers
        else "No other node has the same hardware.",
        changes=tuple(changes[:100]),
        more_changes=max(0, len(changes) - 100),
        notices=tuple(notices),
    )


def _stretch_lines(past: Past, node: str) -> list[StretchLine]:
    """Return the stretches of the node, the newest first. Runs without the node are left out."""
    own = (failure for failure in past.failures if failure.node == node)
    by_run = grouped((failure.run, (failure.rule or "no answer", failure.message)) for failure in own)
    keys = [None if state is None else f"{state}\0{by_run.get(place)}" for place, state in enumerate(past.states[node])]
    lines = []
    for first, last, key in stretches(keys):
        state = past.states[node][last]
        if key is None or state is None:
            continue
        style, symbol, word = OUTCOMES[state]
        began, ended = day(past.runs[first].began), day(past.runs[last].began)
        period = moment(past.runs[first].began) if first == last else f"{began} to {ended}"
        lines.append(
            StretchLine(period, last - first + 1, style, symbol, word, tuple(by_run.get(last, ())), past.runs[last].id)
        )
    lines.reverse()
    return lines


def _quantity_line(item: Series, node: str, peers: Sequence[str], past: Past) -> QuantityLine:
    quantity, own = item.quantity, item.values[node]
    others = _medians([item.values[name] for name in peers if name in item.values], len(past.runs))
    known = [value for value in own if value is not None]
    last = _newest_index(own)
    drawn = [*known, *(value for value in others if value is not None)]
    low, high = min(drawn), max(drawn)
    latest, other_value = own[last], others[last]
    assert latest is not None
    return QuantityLine(
        title=f"{quantity.title[:1].upper()}{quantity.title[1:]}",
        latest=format_measurement(quantity, latest),
        when=day(past.runs[last].began),
        usual=format_measurement(quantity, median(known)),
        peers="" if other_value is None else format_measurement(quantity, other_value),
        span=f"{format_measurement(quantity, min(known))} to {format_measurement(quantity, max(known))}",
        path=curve(own, low, high),
        peer_path=curve(others, low, high),
    )


def _medians(series: Sequence[Values], runs: int) -> Values:
    found: Values = []
    for place in range(runs):
        values = [value for item in series if (value := item[place]) is not None]
        found.append(median(values) if values else None)
    return found


#: Largest number of links on a page.
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
    """The content of the links page, in words."""

    title: str
    note: str
    period: tuple[str, str]
    legend: tuple[Swatch, ...]
    lines: tuple[LinkLine, ...]
    pages: Pages


def links_view(past: Past, quantity: Quantity, links: Sequence[LinkSeries], page: int) -> LinksView:
    """Build the page: the links with the worst newest value first, compared with the median of that run."""
    beside = _medians([item.values for item in links], len(past.runs))
    ordered = sorted(links, key=lambda item: (-_badness(item, quantity, beside), item.node, item.peer))
    pages, shown = paginate(ordered, page, PAGE_LINKS)
    values = [value for item in links for value in item.values if value is not None]
    scale = scale_of(values) if values else None
    better = {"higher": "more is better", "lower": "less is better"}.get(quantity.better, "")
    return LinksView(
        title=f"{quantity.title[:1].upper()}{quantity.title[1:]}",
        note="Links are sorted by how bad their newest value is compared with the other links of that run, worst "
        f"first; {better}."
        if better
        else "Sorted by node name.",
        period=(day(past.runs[0].began), day(past.runs[-1].began)),
        legend=tuple(_legend(scale, quantity)),
        lines=tuple(_line(item, past, quantity, scale) for item in shown),
        pages=pages,
    )


def _newest_index(values: Sequence[object]) -> int:
    return max(place for place, value in enumerate(values) if value is not None)


def _badness(item: LinkSeries, quantity: Quantity, beside: Sequence[float | None]) -> float:
    """Return how many times worse than the median of its run the newest value is; 0 if neither way is better."""
    place = _newest_index(item.values)
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
    entries = [
        Swatch(
            style,
            f"{format_measurement(quantity, edges[n])} to "
            f"{format_measurement(quantity, edges[min(n + 1, len(edges) - 1)])}",
            str(n + 1),
        )
        for n, style in enumerate(styles)
    ]
    return [*entries, Swatch("nothing", "not measured", "·")]


def _line(item: LinkSeries, past: Past, quantity: Quantity, scale: Scale | None) -> LinkLine:
    known = [value for value in item.values if value is not None]
    place, usual = _newest_index(item.values), median(known)
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
                f"{day(past.runs[at].began)}: {format_measurement(quantity, value)}",
            )
            for at, value in enumerate(item.values)
            if value is not None
        ),
        format_measurement(quantity, latest),
        day(past.runs[place].began),
        format_measurement(quantity, usual),
        f"{change:+.0%}" if abs(change) >= 0.005 else "±0%",
        len(known),
        worse and quantity.better != "none",
    )
