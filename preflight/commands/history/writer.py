"""Adds a run to the history, and removes runs that are older than it keeps.

A run is one transaction: it is kept whole or not at all, whatever ends the process.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from preflight._util.json_output import plain
from preflight._util.sanitize import clean
from preflight._util.usage_error import UsageError
from preflight.commands.history.database import Database
from preflight.engine.report import Report, hosts_of
from preflight.model.findings import Severity
from preflight.model.measurements import Measurements

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_DAY_S = 86_400
#: A database takes a limited number of values in a statement.
_ROWS = 5_000
_MAX_MESSAGE = 500
_KEEP = re.compile(r"([1-9]\d{0,4})(d|runs)")


def check_keep(text: str) -> str:
    """`text`, if it limits the age or number of runs: `180d`, or the newest `500runs`. Raises UsageError otherwise."""
    if not _KEEP.fullmatch(text):
        raise UsageError(f"--history-keep {text}: expected a number of days or runs, as in 180d or 500runs")
    return text


def why_not_kept(report: Report) -> str:
    """Why the history does not take this run; empty if it does."""
    if report.run.smoke_options.injected_fault is not None:
        return "a fault was injected into it"
    if not report.nodes:
        return "it has no nodes"
    return ""


def add_run(database: Database, report: Report, *, keep: str = "") -> bool:
    """Add a run, and remove those beyond `keep`. Returns whether it was added: a run that is known is not added again.

    Raises:
        UsageError: the database cannot be written; it is then as before.
        ValueError: `why_not_kept` gives a reason.
    """
    if why := why_not_kept(report):
        raise ValueError(f"the run is not kept in the history: {why}")
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
    """What only this run has: its time to the second, the times of its stages, and of its nodes' answers."""
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
    """When a run began, in seconds since the epoch."""
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
    """Add what failed by node. A finding below `fail_on` is kept as `noted`: it does not make the node fail."""
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
                "node_ids": _listed(node_id[node] for node in item.nodes),
                "peer_ids": _listed(node_id[node] for node in item.peers),
                "value_list": _listed(map(_shortest, item.values)),
            }
            for item in measured
        ],
    )


def _listed(values: Iterable[float]) -> str:
    return json.dumps(list(values), separators=(",", ":"))


def _shortest(value: float) -> float:
    """Counts as integers, and no more digits than a measurement has."""
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else float(f"{value:.7g}")


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS):
        connection.execute(table.insert(), rows[start : start + _ROWS])


def _ids(
    connection: Connection, table: Table, column: str, rows: Iterable[Mapping[str, Any]], *, update: Sequence[str] = ()
) -> dict[str, int]:
    """The numbers of the rows with these values of `column`, which are added if they are new.

    Args:
        update: columns that a known row takes from the given one.
    """
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
    """Remove the runs beyond `keep`, and what only they used."""
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
