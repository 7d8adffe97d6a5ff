"""The nodes: which are fit, what to do without the others, and one table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preflight.exhibit import Cell, Column, Row, Table
from preflight.hosts import Hosts, hosts_of, ways_without
from preflight.outcome import Finding, Severity
from preflight.recording import NodeRecord
from preflight.report import Report
from preflight.reporters.clean import fold_nodes
from preflight.reporters.html.drawing.table import table_view
from preflight.reporters.html.drawing.view import CellView, RowView, TableView
from preflight.reporters.html.findings import anchor_of
from preflight.reporters.html.view import Fact, NodesView, Way

#: Of the exhibits the one that says more of each node.
EXHIBIT = "nodes"
#: Columns of it that say how a node was reached.
_REACHED = ("state", "agent")
_STATES = {"fit": "good", "not fit": "bad", "cannot be told": "open"}


def nodes_view(report: Report) -> NodesView | None:
    """The section about nodes; None where the run had none."""
    if not report.nodes:
        return None
    hosts = hosts_of(report)
    named = {"not fit": hosts.failing, "cannot be told": hosts.untold, "fit": hosts.passing}
    summary = tuple(
        Fact(f"{len(names)} {state}", fold_nodes(names), folded=fold_nodes(names))
        for state, names in named.items()
        if names
    )
    return NodesView(_linked(table_view(_table(report, hosts)), report), summary, ways_of(report, hosts))


def ways_of(report: Report, hosts: Hosts) -> tuple[Way, ...]:
    """How to start without the nodes that are not fit; what begins with an option is no command by itself."""
    return tuple(Way(way, not way.startswith("-")) for way in ways_without(report, hosts))


def _table(report: Report, hosts: Hosts) -> Table:
    """What is known of reaching each node, and whatever the exhibit about nodes adds."""
    more = next((e for e in report.exhibits if e.id == EXHIBIT and isinstance(e, Table)), None)
    # How a node was reached stands in the columns before these.
    kept = [number for number, column in enumerate(more.columns) if column.name not in _REACHED] if more else []
    added = {row.subject: tuple(row.cells[number] for number in kept) for row in more.rows} if more else {}
    further = [more.columns[number] for number in kept] if more else []
    columns = [Column("state"), Column("findings"), *_own_columns(report.nodes), *further]
    states = {name: state for state, names in _by_state(hosts) for name in names}
    found = _findings(report.findings)
    rows = tuple(_row(record, report.nodes, states, found, added, len(columns)) for record in report.nodes)
    note = more.note if more else f"{len(report.nodes):,} nodes, in rank order"
    return Table(EXHIBIT, "Nodes", note, tuple(columns), rows)


def _by_state(hosts: Hosts) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("fit", hosts.passing), ("not fit", hosts.failing), ("cannot be told", hosts.untold))


def _own_columns(nodes: Sequence[NodeRecord]) -> list[Column]:
    found = [Column("reached")]
    if _pythons_differ(nodes):
        found.append(Column("agent's Python"))
    if any(record.round_trip_s is not None for record in nodes):
        found.append(Column("round trip to it", "s"))
    return found


def _pythons_differ(nodes: Sequence[NodeRecord]) -> bool:
    """Whether it is worth a column which Python each agent runs under."""
    return len({record.python for record in nodes if record.python}) > 1


def _row(
    record: NodeRecord,
    nodes: Sequence[NodeRecord],
    states: dict[str, str],
    found: dict[str, list[str]],
    added: dict[str, tuple[Cell, ...]],
    width: int,
) -> Row:
    name = record.node.name
    state = states.get(name, "fit")
    cells = [Cell(state, odd=state == "not fit"), Cell(", ".join(found.get(name, ())))]
    cells.append(Cell(record.problem or "answered", odd=bool(record.problem)))
    if _pythons_differ(nodes):
        cells.append(Cell(record.python or None))
    if any(other.round_trip_s is not None for other in nodes):
        cells.append(Cell(record.round_trip_s))
    cells += added.get(name, ())
    # Of a node that never answered nothing else is known.
    cells += [Cell(None, why="nothing was seen of it")] * (width - len(cells))
    return Row(name, tuple(cells[:width]))


def _findings(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """The ids of findings by the nodes they name; what is only information would be all over the table."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        for node in finding.nodes if finding.severity is not Severity.INFO else ():
            ids = found.setdefault(node, [])
            if finding.id not in ids:
                ids.append(finding.id)
    return found


def _linked(table: TableView, report: Report) -> TableView:
    """The table with signs of states, and its ids as links to the findings."""
    anchors = {finding.id: anchor_of(finding) for finding in reversed(report.findings)}
    return replace(
        table,
        rows=tuple(_linked_row(row, anchors) for row in table.rows),
        all_rows=tuple(_linked_row(row, anchors) for row in table.all_rows),
    )


def _linked_row(row: RowView, anchors: dict[str, str]) -> RowView:
    state, found, *others = row.cells
    links = tuple((anchors[id], id) for id in found.text.split(", ") if id in anchors)
    state = replace(state, state=_STATES.get(state.text, ""), odd=False)
    return replace(row, cells=(state, CellView(found.text, links=links), *others))
