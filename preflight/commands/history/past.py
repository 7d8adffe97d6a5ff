"""The runs in the history: how a run is written, and how runs of a fleet or of one node are read.

A run is one transaction: it is stored completely or not at all, even if the process is killed.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from preflight._util.json_output import plain
from preflight._util.sanitize import clean
from preflight._util.sequences import grouped
from preflight._util.usage_error import UsageError
from preflight.commands.history.database import Database
from preflight.engine.report import Report, hosts_of
from preflight.model.findings import Severity
from preflight.model.measurements import Measurements, Quantity

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select, Table


_DAY_S = 86_400
#: A database accepts a limited number of values in a statement.
_ROWS = 5_000
_MAX_MESSAGE = 500
_KEEP = re.compile(r"([1-9]\d{0,4})(d|runs)")


def check_keep(text: str) -> str:
    """Return `text` if it limits runs by age (`180d`) or number (`500runs`). Raises UsageError otherwise."""
    if not _KEEP.fullmatch(text):
        raise UsageError(f"--history-keep {text}: expected a number of days or runs, as in 180d or 500runs")
    return text


def why_not_kept(report: Report) -> str:
    """Return why the history rejects this run; empty if it accepts it."""
    if report.run.smoke_options.injected_fault is not None:
        return "a fault was injected into it"
    if not report.nodes:
        return "it has no nodes"
    return ""


def add_run(database: Database, report: Report, *, keep: str = "") -> bool:
    """Add a run unless it is known, and remove those beyond `keep`; return whether it was added.

    Raises UsageError if the database is unchanged, and ValueError with the reason of `why_not_kept`.
    """
    if why := why_not_kept(report):
        raise ValueError(f"the run is not stored in the history: {why}")
    from preflight.commands.history import database as tables

    with database.writing() as connection:
        key = _key(report)
        known = connection.execute(tables.RUNS.select().where(tables.RUNS.c.key == key)).first()
        if known is None:
            _add(connection, report, key)
        if keep:
            _remove_old(connection, keep)
    return known is None


def _key(report: Report) -> str:
    """Return a key that identifies the run: its time to the second, the times of its stages, and its nodes' answers."""
    run = report.run
    own = {
        "created": run.created,
        "stages": run.stages,
        "verb": run.verb,
        "executor": run.executor,
        "nodes": report.nodes,
    }
    return hashlib.sha256(json.dumps(plain(own), sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def began_at(report: Report) -> int:
    """Return the start of a run in seconds since the epoch."""
    return int(datetime.fromisoformat(report.run.created).timestamp())


def _add(connection: Connection, report: Report, key: str) -> None:
    from preflight.commands.history import database as tables

    run = connection.execute(
        tables.RUNS.insert().returning(tables.RUNS.c.id),
        {
            "key": key,
            "began": began_at(report),
            "verb": report.run.verb,
            "verdict": report.verdict.value,
            "exit_code": int(report.exit_code),
            "executor": report.run.executor,
            "tool_version": report.tool.version,
        },
    ).scalar_one()
    names = {record.node.name for record in report.nodes}
    names.update(name for item in report.measurements for name in (*item.nodes, *item.peers))
    nodes = _ids(connection, tables.NODES, "name", [{"name": clean(name)[:255]} for name in names])
    node_id = {name: nodes[clean(name)[:255]] for name in names}
    _add_nodes(connection, report, run, node_id)
    _add_outcomes(connection, report, run, node_id)
    _add_measurements(connection, report.measurements, run, node_id)


def _add_nodes(connection: Connection, report: Report, run: int, node_id: Mapping[str, int]) -> None:
    from preflight.commands.history import database as tables

    contents = {item.node: json.dumps(item.items, sort_keys=True) for item in report.properties}
    digests = {content: hashlib.sha256(content.encode()).hexdigest() for content in contents.values()}
    sets = _ids(
        connection,
        tables.PROPERTY_SETS,
        "digest",
        [{"digest": digest, "content": content} for content, digest in digests.items()],
    )
    state = {
        name: kind
        for kind, names in zip(("passing", "failing", "unknown"), hosts_of(report), strict=True)
        for name in names
    }
    _insert(
        connection,
        tables.NODE_RUNS,
        [
            {
                "run_id": run,
                "node_id": node_id[record.node.name],
                "state": state[record.node.name],
                "problem": clean(record.problem)[:_MAX_MESSAGE],
                "property_set_id": sets[digests[contents[record.node.name]]] if record.node.name in contents else None,
            }
            for record in report.nodes
        ],
    )


def _add_outcomes(connection: Connection, report: Report, run: int, node_id: Mapping[str, int]) -> None:
    """Add the faults of each node. A finding below `fail_on` is stored as `noted`: it does not make the node fail."""
    from preflight.commands.history import database as tables

    rows = []
    least = Severity(report.configuration.fail_on).rank
    for finding in report.findings:
        status = "fail" if finding.severity.rank >= least else "noted"
        for node in dict.fromkeys(finding.nodes):
            if node in node_id:
                rows.append((node, finding.id, finding.name, status, finding.severity.value, finding.message))
    for outcome in report.coverage.unknown_outcomes:
        for node in dict.fromkeys(outcome.nodes) if outcome.required else ():
            if node in node_id:
                rows.append((node, outcome.id, outcome.name, "unknown", Severity.INFO.value, outcome.reason))
    columns = ("rule", "name", "status", "severity")
    _insert(
        connection,
        tables.OUTCOMES,
        [
            {
                "run_id": run,
                "node_id": node_id[node],
                **dict(zip(columns, texts, strict=True)),
                "message": clean(message)[:_MAX_MESSAGE],
            }
            for node, *texts, message in rows
        ],
    )


def _add_measurements(
    connection: Connection, measured: Sequence[Measurements], run: int, node_id: Mapping[str, int]
) -> None:
    from preflight.commands.history import database as tables

    fields = ("name", "title", "unit", "kind", "better", "least", "share")
    quantities = _ids(
        connection,
        tables.QUANTITIES,
        "name",
        [{field: getattr(item.quantity, field) for field in fields} for item in measured],
        update=fields[1:],
    )
    _insert(
        connection,
        tables.MEASUREMENTS,
        [
            {
                "run_id": run,
                "quantity_id": quantities[item.quantity.name],
                "node_ids": _json_lists(node_id[node] for node in item.nodes),
                "peer_ids": _json_lists(node_id[node] for node in item.peers),
                "value_list": _json_lists(map(_shortest_number, item.values)),
            }
            for item in measured
        ],
    )


def _json_lists(values: Iterable[float]) -> str:
    return json.dumps(list(values), separators=(",", ":"))


def _shortest_number(value: float) -> float:
    """Return a count as an integer, and any other value with no more digits than a measurement has."""
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else float(f"{value:.7g}")


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS):
        connection.execute(table.insert(), rows[start : start + _ROWS])


def _ids(
    connection: Connection, table: Table, column: str, rows: Iterable[Mapping[str, Any]], *, update: Sequence[str] = ()
) -> dict[str, int]:
    """Return the row ids for these values of `column`; new values are added, known rows get columns `update`."""
    wanted = {row[column]: row for row in rows}
    known = {
        row._mapping[column]: row._mapping
        for start in range(0, len(wanted), 500)
        for row in connection.execute(table.select().where(table.c[column].in_(sorted(wanted)[start : start + 500])))
    }
    new = [wanted[value] for value in sorted(wanted) if value not in known]
    _insert(connection, table, new)
    for value, row in known.items():
        changed = {name: wanted[value][name] for name in update if row[name] != wanted[value][name]}
        if changed:
            connection.execute(table.update().where(table.c.id == row["id"]).values(changed))
    found = {value: int(row["id"]) for value, row in known.items()}
    return {**found, **_ids(connection, table, column, new)} if new else found


def _remove_old(connection: Connection, keep: str) -> None:
    """Remove the runs beyond `keep`, and the rows that only they used."""
    from sqlalchemy import delete, select

    from preflight.commands.history import database as tables

    match = _KEEP.fullmatch(keep)
    assert match is not None
    runs = tables.RUNS
    if match[2] == "d":
        old = select(runs.c.id).where(runs.c.began < int(time.time()) - int(match[1]) * _DAY_S)
    else:
        old = select(runs.c.id).order_by(runs.c.began.desc(), runs.c.id.desc()).offset(int(match[1]))
    ids = list(connection.scalars(old))
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        for table in tables.OF_RUNS:
            connection.execute(delete(table).where(table.c.run_id.in_(some)))
        connection.execute(delete(runs).where(runs.c.id.in_(some)))
    if ids:
        used = select(tables.NODE_RUNS.c.property_set_id).where(tables.NODE_RUNS.c.property_set_id.is_not(None))
        connection.execute(delete(tables.PROPERTY_SETS).where(tables.PROPERTY_SETS.c.id.not_in(used)))


#: A statement accepts a limited number of values.
_MAX_NAMED_RUNS = 5_000

Values = list[float | None]


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run: `began` counts seconds since the epoch."""

    id: int
    began: int
    verb: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault of a node in a run, if it counts. `rule` is empty for a node that did not respond."""

    run: int
    node: str
    rule: str
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity of nodes in every run; None where a node was not measured."""

    quantity: Quantity
    values: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class Past:
    """Runs in the order of time, and their results. Lists of a node have one entry for each run.

    Args:
        runs: in the order of time.
        states: `passing`, `failing` or `unknown` in each run; None in runs without the node.
        sets: the number of the node's property set in each run; None if nothing is known.
        properties: the property sets by number.
        failures: in the order of time, then by node.
        series: by the name of the quantity.
    """

    runs: tuple[PastRun, ...] = ()
    states: Mapping[str, list[str | None]] = field(default_factory=dict)
    sets: Mapping[str, list[int | None]] = field(default_factory=dict)
    properties: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    series: Mapping[str, Series] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return every node, by name."""
        return tuple(self.states)

    def time_of(self, run: int) -> str:
        """Return the time of a run, ISO 8601 in UTC."""
        return datetime.fromtimestamp(self.runs[run].began, timezone.utc).isoformat(timespec="seconds")

    def last_properties(self, node: str) -> Mapping[str, str]:
        """Return the properties of a node, as last seen; empty if none are known."""
        last = next((number for number in reversed(self.sets[node]) if number is not None), None)
        return {} if last is None else self.properties.get(last, {})


def load_past(database: Database, *, days: float | None = None) -> Past:
    """Return the runs of the last `days` before the newest run (default: all). Raises UsageError."""
    with database.reading() as connection:
        return past_in(connection, days=days)


def past_in(
    connection: Connection, *, days: float | None = None, newest: int | None = None, measured: bool = True
) -> Past:
    """Return the (`newest`) runs from an open connection, as `load_past` does; `measured`: with measurements."""
    runs = _runs(connection, days)
    if newest is not None:
        runs = runs[-newest:]
    if not runs:
        return Past()
    place = {run.id: number for number, run in enumerate(runs)}
    names = names_in(connection)
    states, sets = _states(connection, place, names)
    return Past(
        runs=runs,
        states=states,
        sets=sets,
        properties=_properties(connection),
        failures=_failures(connection, place, names),
        series=_series(connection, place, names) if measured else {},
    )


def _runs(connection: Connection, days: float | None) -> tuple[PastRun, ...]:
    from sqlalchemy import func, select

    from preflight.commands.history.database import RUNS

    columns = (RUNS.c.id, RUNS.c.began, RUNS.c.verb, RUNS.c.verdict)
    query = select(*columns).order_by(RUNS.c.began, RUNS.c.key)
    newest = connection.scalar(select(func.max(RUNS.c.began)))
    if days is not None and newest is not None:
        query = query.where(RUNS.c.began > newest - days * _DAY_S)
    return tuple(PastRun(*row) for row in connection.execute(query))


def names_in(connection: Connection) -> dict[int, str]:
    """Return the names of all nodes by id."""
    from preflight.commands.history.database import NODES

    return {row.id: row.name for row in connection.execute(NODES.select())}


def quantities_in(connection: Connection) -> dict[int, Quantity]:
    """Return all measured quantities by id."""
    from preflight.commands.history.database import QUANTITIES

    return {
        row.id: Quantity(row.name, row.title, row.unit, row.kind, row.better, row.least, row.share)
        for row in connection.execute(QUANTITIES.select())
    }


def _properties(connection: Connection) -> dict[int, dict[str, str]]:
    from preflight.commands.history.database import PROPERTY_SETS

    return {row.id: json.loads(row.content) for row in connection.execute(PROPERTY_SETS.select())}


def _states(
    connection: Connection, place: Mapping[int, int], names: Mapping[int, str]
) -> tuple[dict[str, list[str | None]], dict[str, list[int | None]]]:
    """Return the state and the property set of each node in each run. The database folds nodes into lists."""
    from sqlalchemy import Text, cast, func, select

    from preflight.commands.history.database import NODE_RUNS

    table = NODE_RUNS.c
    fold = func.json_group_array if connection.dialect.name == "sqlite" else func.json_agg
    query = select(table.run_id, table.property_set_id, table.state, cast(fold(table.node_id), Text)).group_by(
        table.run_id, table.property_set_id, table.state
    )
    states: dict[int, list[str | None]] = {}
    sets: dict[int, list[int | None]] = {}
    for run, property_set, state, nodes in connection.execute(_restrict_to_runs(query, table.run_id, place)):
        if run not in place:
            continue
        at = place[run]
        for node in json.loads(nodes):
            if node not in states:
                states[node], sets[node] = [None] * len(place), [None] * len(place)
            states[node][at], sets[node][at] = state, property_set
    ordered = sorted(states, key=lambda node: names[node])
    return {names[node]: states[node] for node in ordered}, {names[node]: sets[node] for node in ordered}


def _failures(connection: Connection, place: Mapping[int, int], names: Mapping[int, str]) -> tuple[Failure, ...]:
    """Return the faults that made nodes fail: no response, or a fault in a run where the node's state is failing."""
    from sqlalchemy import and_, select

    from preflight.commands.history.database import NODE_RUNS, OUTCOMES

    silent = select(NODE_RUNS.c.run_id, NODE_RUNS.c.node_id, NODE_RUNS.c.problem).where(NODE_RUNS.c.problem != "")
    failures = [
        Failure(place[run], names[node], "", "", problem)
        for run, node, problem in connection.execute(_restrict_to_runs(silent, NODE_RUNS.c.run_id, place))
        if run in place
    ]
    same = and_(NODE_RUNS.c.run_id == OUTCOMES.c.run_id, NODE_RUNS.c.node_id == OUTCOMES.c.node_id)
    faults = (
        select(OUTCOMES.c.run_id, OUTCOMES.c.node_id, OUTCOMES.c.rule, OUTCOMES.c.name, OUTCOMES.c.message)
        .join(NODE_RUNS, same)
        .where(OUTCOMES.c.status == "fail", NODE_RUNS.c.state == "failing")
    )
    failures += [
        Failure(place[run], names[node], *texts)
        for run, node, *texts in connection.execute(_restrict_to_runs(faults, OUTCOMES.c.run_id, place))
        if run in place
    ]
    return tuple(sorted(failures, key=lambda item: (item.run, item.node, item.rule, item.message)))


def measured_in(
    connection: Connection, runs: Collection[int], *, links: bool, quantity: int | None = None
) -> list[Sequence[Any]]:
    """Return the measurements of these runs: run, quantity, and the JSON lists of nodes, peers and values."""
    from sqlalchemy import select

    from preflight.commands.history.database import MEASUREMENTS

    table = MEASUREMENTS.c
    query = select(table.run_id, table.quantity_id, table.node_ids, table.peer_ids, table.value_list)
    query = query.where(table.peer_ids != "[]" if links else table.peer_ids == "[]")
    if quantity is not None:
        query = query.where(table.quantity_id == quantity)
    return [row for row in connection.execute(_restrict_to_runs(query, table.run_id, runs)) if row[0] in runs]


def _restrict_to_runs(query: Select[Any], column: Any, runs: Collection[int]) -> Select[Any]:
    """Return the query for these runs; if there are too many for a statement, the rows are filtered afterwards."""
    return query.where(column.in_(runs)) if len(runs) <= _MAX_NAMED_RUNS else query


def _series(connection: Connection, place: Mapping[int, int], names: Mapping[int, str]) -> dict[str, Series]:
    quantities = quantities_in(connection)
    values: dict[int, dict[int, Values]] = {}
    # Most runs measure the same nodes in the same order.
    lists: dict[str, list[int]] = {}
    for run, quantity, node_ids, _, value_list in measured_in(connection, place, links=False):
        nodes = lists.get(node_ids)
        if nodes is None:
            nodes = lists[node_ids] = json.loads(node_ids)
        at, of_node = place[run], values.setdefault(quantity, {})
        for node, value in zip(nodes, json.loads(value_list), strict=True):
            series = of_node.get(node)
            if series is None:
                series = of_node[node] = [None] * len(place)
            series[at] = value
    found = {}
    for quantity, of_node in values.items():
        ordered = sorted(of_node, key=lambda node: names[node])
        found[quantities[quantity].name] = Series(
            quantities[quantity], {names[node]: of_node[node] for node in ordered}
        )
    return dict(sorted(found.items()))


#: Nodes with the same values of these properties are peers.
_HARDWARE = ("gpu", "gpus", "processor")
#: Properties that change when a node is updated; hardware is not included.
SOFTWARE = ("driver", "cuda", "kernel", "os")


def peers_of(past: Past) -> dict[str, tuple[str, ...]]:
    """Return the groups of comparable nodes by a description of their hardware, as each was last seen."""
    found = grouped((_hardware(past.last_properties(node)), node) for node in past.sets)
    return {name: tuple(nodes) for name, nodes in sorted(found.items())}


def _hardware(properties: Mapping[str, str]) -> str:
    gpu, gpus = properties.get("gpu", ""), properties.get("gpus", "")
    if gpu and gpu != "none":
        return f"{gpus} x {gpu}" if gpus else gpu
    return ", ".join(properties[name] for name in _HARDWARE if properties.get(name, "none") not in ("", "none", "0"))


@dataclass(frozen=True, slots=True)
class Change:
    """One property of a node that changed. `run` is the first one with the new value."""

    run: int
    node: str
    name: str
    before: str
    after: str


def changes_of(past: Past) -> Iterator[Change]:
    """Yield every property change of a node, by node and then in the order of time."""
    for node, sets in past.sets.items():
        known: dict[str, str] = {}
        last: int | None = None
        for run, number in enumerate(sets):
            if number is None or number == last:
                continue
            last = number
            properties = past.properties.get(number, {})
            for name, value in properties.items():
                if known.get(name, value) != value:
                    yield Change(run, node, name, known[name], value)
            known.update(properties)
