"""The rack of each node of a job, from the node's name: `r12n03`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from preflight.plugin import Cell, Column, Facts, Fleet, Job, Row, Table

_NAME = re.compile(r"(r\d+)n\d+")


def racks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """One row per node with its rack; a node in a different rack than most is marked."""
    found = {node.name: match[1] for node in fleet.nodes if (match := _NAME.match(node.name))}
    if not found:
        return
    usual = Counter(found.values()).most_common(1)[0][0]
    rows = tuple(
        Row(node.name, (Cell(found[node.name], odd=found[node.name] != usual),))
        if node.name in found
        else Row(node.name, (Cell(None, why="its name contains no rack"),))
        for node in fleet.nodes
    )
    note = f"Which of {len(set(found.values()))} racks {len(found)} of {len(fleet.nodes)} nodes stand in."
    yield Table("acme.racks", "Racks", note, (Column("rack"),), rows)
