"""Runs, nodes, outcomes and measurements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of the first version."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("began", sa.BigInteger, nullable=False, index=True),
        sa.Column("verb", sa.String(16), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("exit_code", sa.SmallInteger, nullable=False),
        sa.Column("executor", sa.String(64), nullable=False),
        sa.Column("tool_version", sa.String(64), nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(255), nullable=False, unique=True),
    )
    op.create_table(
        "quantities",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(128), nullable=False, unique=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("unit", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("better", sa.String(16), nullable=False),
        sa.Column("least", sa.Double, nullable=False),
        sa.Column("share", sa.Double, nullable=False),
    )
    op.create_table(
        "property_sets",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("content", sa.Text, nullable=False),
    )
    op.create_table(
        "node_runs",
        *_keys("run", "node"),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("property_set_id", sa.Integer, sa.ForeignKey("property_sets.id")),
    )
    op.create_table(
        "outcomes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False, index=True),
        sa.Column("node_id", sa.Integer, sa.ForeignKey("nodes.id"), nullable=False),
        sa.Column("rule", sa.String(16), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_table(
        "measurements",
        *_keys("run", "quantity"),
        sa.Column("node_ids", sa.Text, nullable=False),
        sa.Column("peer_ids", sa.Text, nullable=False),
        sa.Column("value_list", sa.Text, nullable=False),
    )


def _keys(*names: str) -> list[sa.Column[int]]:
    tables = {"run": "runs", "node": "nodes", "quantity": "quantities"}
    return [
        sa.Column(f"{name}_id", sa.Integer, sa.ForeignKey(f"{tables[name]}.id"), primary_key=True, autoincrement=False)
        for name in names
    ]
