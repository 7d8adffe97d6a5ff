"""Which rack each node of a job stands in, as its name says: `r12n03`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from preflight.exhibit import Cell, Column, Row, Table
from preflight.job import Job
from preflight.recording import Facts, Fleet

_NAME = re.compile(r"(r\d+)n\d+")


def racks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Table]:
    """A row a node with its rack; marked is a node that stands in another one than most."""
    found = {node.name: match[1] for node in fleet.nodes if (match := _NAME.match(node.name))}
    if not found:
        return
    usual = Counter(found.values()).most_common(1)[0][0]
    rows = tuple(
        Row(node.name, (Cell(found[node.name], odd=found[node.name] != usual),))
        if node.name in found
        else Row(node.name, (Cell(None, why="its name says no rack"),))
        for node in fleet.nodes
    )
    note = f"Which of {len(set(found.values()))} racks {len(found)} of {len(fleet.nodes)} nodes stand in."
    yield Table("acme.racks", "Racks", note, (Column("rack"),), rows)
