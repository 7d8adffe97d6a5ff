"""The fleet in one page: every node with its outcome, what failed, what is new, and every run.

Times, numbers and drawings of the page, in the words and classes of the HTML report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from preflight._util.sanitize import fold_nodes
from preflight.commands.history.past import SOFTWARE, Past, changes_of
from preflight.model.measurements import Quantity
from preflight.reporters.html.drawing.scales import (
    BAD,
    DARK,
    LIGHT,
    NOTHING,
    OK,
    UNKNOWN,
    data_address,
    format_number,
    share,
)
from preflight.reporters.html.drawing.shapes import Picture, Swatch
from preflight.reporters.text.groups import count
from preflight.services.fleet_page.history_queries import Fault, Filters, RunCounts, counts_of

#: Nodes of a page of the grid, and of a group in it.
PAGE_NODES = 2_000
GROUP = 25
#: Runs and changes that a page lists.
PAGE_RUNS, MAX_CHANGES = 30, 40
#: The largest number of nodes that the picture shows as rows of their own.
MAX_PICTURE_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class NodeCell:
    """A node in the grid. `title` means the same as its colour and sign."""

    name: str
    style: str
    sign: str
    title: str
    state: str


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Some nodes of the grid, and their names in short."""

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

    rule: str
    name: str
    status: str
    severity: str
    message: str
    nodes: str
    count: int
    new: str


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run: `hosts` of it can be shown by its id."""

    id: int
    when: str
    command: str
    verdict: str
    passing: int
    failing: int
    unknown: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class Pages:
    """Where a long list is: the number of this page and of all of them."""

    page: int
    pages: int
    total: int


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything that the page of the fleet shows, in words."""

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
    runs: tuple[RunLine, ...]
    more_runs: int


def chosen_run(past: Past, filters: Filters) -> int | None:
    """The place of the chosen run, the newest one without a choice; None if it is not in the period."""
    if filters.run is None:
        return len(past.runs) - 1
    return next((place for place, run in enumerate(past.runs) if run.id == filters.run), None)


def chosen_nodes(past: Past, filters: Filters, place: int) -> tuple[str, ...]:
    """The nodes that the filters choose, by name."""
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
    """Build the page.

    Args:
        place: of the run whose outcomes are shown.
        faults: what the nodes had in it.
        left_out: older runs of the period that are too many for a page.
    """
    nodes = chosen_nodes(past, filters, place)
    states = {node: past.states[node][place] or "absent" for node in nodes}
    numbers = Counter(states.values())
    pages = Pages(filters.page, max(1, -(-len(nodes) // PAGE_NODES)), len(nodes))
    start = (filters.page - 1) * PAGE_NODES
    shown = nodes[start : start + PAGE_NODES]
    before = {node: past.states[node][place - 1] for node in nodes} if place else {}
    newly = [node for node in nodes if states[node] == "failing" and before.get(node) == "passing"]
    healed = [node for node in nodes if states[node] == "passing" and before.get(node) == "failing"]
    chosen = set(nodes)
    changes = _changes(past, chosen)
    runs = _run_lines(counts_of(past), place)
    run = past.runs[place]
    return FleetView(
        kind="no-go" if numbers["failing"] else "incomplete" if numbers["unknown"] or not numbers["passing"] else "go",
        word=_word(numbers),
        sentence=_sentence(numbers, len(nodes)),
        about=f"{run.verb} of {moment(run.began)}, verdict {run.verdict}",
        notices=tuple(_notices(past, filters, left_out)),
        legend=tuple(Swatch(style, word, sign) for style, sign, word in OUTCOMES.values()),
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


def only_the_newest(runs: int, left_out: int) -> str:
    """Says that a page does not show all runs of the period."""
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
        found.append(only_the_newest(len(past.runs), left_out))
    names = filters.names
    if names is not None:
        strange = sorted(names.difference(past.nodes))
        if strange:
            found.append(f"The history does not know {fold_nodes(strange)[:300]} in this period.")
    return found


def _group(nodes: Sequence[str], past: Past, place: int) -> NodeGroup:
    label = nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"
    return NodeGroup(label, tuple(_cell(node, past.states[node], place) for node in nodes))


def _cell(node: str, states: Sequence[str | None], place: int) -> NodeCell:
    state = states[place] or "absent"
    style, sign, word = OUTCOMES[state]
    failed = sum(found == "failing" for found in states)
    often = f", failed in {failed} of {sum(found is not None for found in states)} runs" if failed else ""
    return NodeCell(node, style, sign, f"{node}: {word}{often}", state)


def _fault_line(fault: Fault, nodes: set[str], before: dict[str, str | None]) -> FaultLine:
    kept = [node for node in fault.nodes if node in nodes]
    new = [node for node in kept if before.get(node) == "passing"] if fault.status == "fail" else []
    return FaultLine(
        fault.rule,
        fault.name,
        fault.status,
        fault.severity,
        fault.message,
        fold_nodes(kept),
        len(kept),
        fold_nodes(new),
    )


def _changes(past: Past, nodes: set[str]) -> tuple[ChangeLine, ...]:
    """What changed on these nodes, the newest first; drivers, kernels and the like before other properties."""
    together: dict[tuple[int, str, str, str], list[str]] = {}
    for change in changes_of(past):
        if change.node in nodes:
            together.setdefault((change.run, change.name, change.before, change.after), []).append(change.node)
    ordered = sorted(together.items(), key=lambda item: (-item[0][0], item[0][1] not in SOFTWARE, item[0][1:]))
    return tuple(
        ChangeLine(moment(past.runs[run].began), name, before, after, fold_nodes(names), len(names))
        for (run, name, before, after), names in ordered
    )


def _run_lines(runs: Sequence[RunCounts], place: int) -> tuple[RunLine, ...]:
    return tuple(
        RunLine(
            run.id,
            moment(run.began),
            run.command,
            run.verdict,
            run.passing,
            run.failing,
            run.unknown,
            run.place == place,
        )
        for run in reversed(runs)
    )


def _picture(past: Past, nodes: Sequence[str]) -> Picture:
    """Every node as a row and every run as a column; a row of a large fleet is the worst of several nodes."""
    colors = {None: 0, "passing": 1, "unknown": 2, "failing": 3}
    size = -(-len(nodes) // MAX_PICTURE_ROWS)
    rows = [
        bytes(max(column) for column in zip(*([colors[state] for state in past.states[n]] for n in block), strict=True))
        for block in (nodes[at : at + size] for at in range(0, len(nodes), size))
    ]
    light, dark = ([NOTHING, palette[OK], palette[UNKNOWN], palette[BAD]] for palette in (LIGHT, DARK))
    return Picture(data_address(rows, light), data_address(rows, dark), len(past.runs), len(rows))


#: Class, sign and word of each outcome. The signs are the ones of heat maps in reports.
OUTCOMES = {
    "passing": ("ok", "✓", "passing"),
    "failing": ("bad", "×", "failing"),
    "unknown": ("unknown", "?", "unknown"),
    "absent": ("nothing", "·", "not in this run"),
}
_SCALED = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SYMBOLS = {"bits_per_second": "bit/s", "hertz": "Hz", "watts": "W", "bytes_per_second": "B/s"}
_PLAIN = {"seconds": "s", "celsius": "°C", "bytes": "bytes", "ratio": ""}


def day(began: int) -> str:
    """The day of a time in seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%d")


def moment(began: int) -> str:
    """Day and minute of a time in seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def value_of(quantity: Quantity, value: float) -> str:
    """A value with its unit, as people write it: `9.2 Gbit/s`, `45 µs`, `46 °C`."""
    symbol = _SYMBOLS.get(quantity.unit)
    if symbol is not None:
        factor, prefix = next(((f, p) for f, p in _SCALED if abs(value) >= f), (1.0, ""))
        return format_number(value / factor, prefix + symbol)
    number: float = int(value) if float(value).is_integer() and quantity.unit == "" else value
    return format_number(number, _PLAIN.get(quantity.unit, quantity.unit.replace("_", " ")))


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a strip, as a percentage of its width: its class, sign and explanation."""

    at: str
    long: str
    style: str
    title: str


def strip(states: Sequence[str | None], times: Sequence[int]) -> tuple[Block, ...]:
    """The outcomes of a node from left to right, one block for each run; equal neighbours are one block."""
    found = []
    for first, last, state in stretches(states):
        style, _, word = OUTCOMES[state or "absent"]
        period = day(times[first]) if first == last else f"{day(times[first])} to {day(times[last])}"
        found.append(Block(share(first, len(states)), share(last - first + 1, len(states)), style, f"{period}: {word}"))
    return tuple(found)


def stretches(states: Sequence[str | None]) -> list[tuple[int, int, str | None]]:
    """Equal neighbours as first and last place and what they have."""
    found: list[tuple[int, int, str | None]] = []
    for place, state in enumerate(states):
        if found and found[-1][2] == state:
            found[-1] = (found[-1][0], place, state)
        else:
            found.append((place, place, state))
    return found


def curve(values: Sequence[float | None], low: float, high: float) -> str:
    """The path of a small curve in a box of 100 by 100, with gaps where there is no value."""
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
