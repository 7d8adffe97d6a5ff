"""The nodes: which are fit, how to start without the others, and a table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preflight._util.sanitize import fold_nodes
from preflight.engine.node_status import Hosts, hosts_of, starts_without
from preflight.engine.report import Report
from preflight.model.charts import Cell, Column, Row, Table
from preflight.model.findings import Finding, Severity
from preflight.model.recording import NodeRecord
from preflight.reporters.html.drawing.row_table import table_view
from preflight.reporters.html.drawing.shapes import CellView, RowView, TableView
from preflight.reporters.html.finding_section import anchor_of
from preflight.reporters.html.view import Fact, NodesView, Start

#: Id of the chart with more details of each node.
NODE_CHART = "nodes"
#: Its columns about how a node was reached.
_REACHED = ("state", "agent")
_STATES = {"fit": "good", "not fit": "bad", "unknown": "open"}


def nodes_view(report: Report) -> NodesView | None:
    """Build the section about nodes; None if the run had none."""
    if not report.nodes:
        return None
    hosts = hosts_of(report)
    named = {"not fit": hosts.failing, "unknown": hosts.unknown, "fit": hosts.passing}
    summary = tuple(
        Fact(f"{len(names)} {state}", fold_nodes(names), folded=fold_nodes(names))
        for state, names in named.items()
        if names
    )
    return NodesView(_linked(table_view(_table(report, hosts)), report), summary, starts_of(report, hosts))


def starts_of(report: Report, hosts: Hosts) -> tuple[Start, ...]:
    """Return how to start without the nodes that are not fit. A result that begins with an option is not a command by
    itself.
    """
    return tuple(Start(start, not start.startswith("-")) for start in starts_without(report, hosts))


def _table(report: Report, hosts: Hosts) -> Table:
    """Build the table of all nodes, with the columns of the chart about nodes."""
    more = next((e for e in report.charts if e.id == NODE_CHART and isinstance(e, Table)), None)
    # The columns before these say how a node was reached.
    kept = [number for number, column in enumerate(more.columns) if column.name not in _REACHED] if more else []
    added = {row.subject: tuple(row.cells[number] for number in kept) for row in more.rows} if more else {}
    further = [more.columns[number] for number in kept] if more else []
    columns = [Column("state"), Column("findings"), *_own_columns(report.nodes), *further]
    states = {name: state for state, names in _by_state(hosts) for name in names}
    found = _findings(report.findings)
    rows = tuple(_row(record, report.nodes, states, found, added, len(columns)) for record in report.nodes)
    note = more.note if more else f"{len(report.nodes):,} nodes, in rank order"
    return Table(NODE_CHART, "Nodes", note, tuple(columns), rows)


def _by_state(hosts: Hosts) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("fit", hosts.passing), ("not fit", hosts.failing), ("unknown", hosts.unknown))


def _own_columns(nodes: Sequence[NodeRecord]) -> list[Column]:
    found = [Column("reached")]
    if _pythons_differ(nodes):
        found.append(Column("agent's Python"))
    if any(record.round_trip_s is not None for record in nodes):
        found.append(Column("round trip to it", "s"))
    return found


def _pythons_differ(nodes: Sequence[NodeRecord]) -> bool:
    """Return whether agents run under different Pythons, which is worth a column."""
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
    # Nothing else is known about a node that never answered.
    cells += [Cell(None, why="no data")] * (width - len(cells))
    return Row(name, tuple(cells[:width]))


def _findings(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """Return the ids of findings by node; informational findings are left out."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        for node in finding.nodes if finding.severity is not Severity.INFO else ():
            ids = found.setdefault(node, [])
            if finding.id not in ids:
                ids.append(finding.id)
    return found


def _linked(table: TableView, report: Report) -> TableView:
    """Add signs of states to the table, and link its ids to the findings."""
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
