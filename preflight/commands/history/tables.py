"""The tables of the history as they are now; `migrations/` leads there from every earlier state.

Names and texts that repeat are stored once. 500 nodes with ten quantities take about 150 KiB a night.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

METADATA = MetaData()


def _of(table: str, *, key: bool = False) -> Column[int]:
    """The column that refers to a row of another table."""
    name = f"{table.removesuffix('s')}_id"
    return Column(name, Integer, ForeignKey(f"{table}.id"), primary_key=key, nullable=False, autoincrement=False)


#: One row per run. `key` is made of what only this run has, so that the same run is never kept twice; `began` counts
#: seconds since the epoch.
RUNS = Table(
    "runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("began", BigInteger, nullable=False, index=True),
    Column("verb", String(16), nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("exit_code", SmallInteger, nullable=False),
    Column("executor", String(64), nullable=False),
    Column("tool_version", String(64), nullable=False),
)
NODES = Table(
    "nodes", METADATA, Column("id", Integer, primary_key=True), Column("name", String(255), nullable=False, unique=True)
)
QUANTITIES = Table(
    "quantities",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("title", Text, nullable=False),
    Column("unit", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("better", String(16), nullable=False),
    Column("least", Double, nullable=False),
    Column("share", Double, nullable=False),
)
#: What a node consists of, as JSON; nodes that are equal share a row.
PROPERTY_SETS = Table(
    "property_sets",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("content", Text, nullable=False),
)
#: The result of a node in a run: `passing`, `failing` or `unknown`, and the problem of one that did not answer.
NODE_RUNS = Table(
    "node_runs",
    METADATA,
    _of("runs", key=True),
    _of("nodes", key=True),
    Column("state", String(8), nullable=False),
    Column("problem", Text, nullable=False),
    Column("property_set_id", Integer, ForeignKey("property_sets.id")),
)
#: What a node had (`fail`, or `noted` if it did not count), and what was required and could not be decided (`unknown`).
OUTCOMES = Table(
    "outcomes",
    METADATA,
    Column("id", Integer, primary_key=True),
    _of("runs"),
    _of("nodes"),
    Column("rule", String(16), nullable=False),
    Column("name", String(128), nullable=False),
    Column("status", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Index("ix_outcomes_run_id", "run_id"),
)
#: The values of one quantity in one run, as JSON lists of equal length: the numbers of the nodes, for a link those of
#: its peers (else empty), and the values. One row for each value would take seconds to read.
MEASUREMENTS = Table(
    "measurements",
    METADATA,
    _of("runs", key=True),
    Column("quantity_id", Integer, ForeignKey("quantities.id"), primary_key=True, autoincrement=False),
    Column("node_ids", Text, nullable=False),
    Column("peer_ids", Text, nullable=False),
    Column("value_list", Text, nullable=False),
)
#: The tables that have rows of a run, in the order in which these can be removed.
OF_RUNS = (MEASUREMENTS, OUTCOMES, NODE_RUNS)
