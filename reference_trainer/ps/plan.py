"""The assignment of parameters in one run: every process computes the same plan, and only its digest is sent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from reference_trainer.ps import partition
from reference_trainer.ps.partition import FLOAT_BYTES, SLICE_BYTES, Block

#: Everything beside the parameters that the layout of the wire and of a server's memory depends on.
LAYOUT = 1


@dataclass(frozen=True)
class Parameter:
    """A dense parameter: its name and shape. All numbers are float32."""

    name: str
    shape: Tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return partition.product(self.shape)


@dataclass(frozen=True)
class Table:
    """A sparse parameter: rows of one width, assigned to servers by row number."""

    name: str
    rows: int
    width: int


@dataclass(frozen=True)
class Piece:
    """The location of a block of a parameter: it starts at `offset` in the numbers of its server."""

    block: Block
    offset: int


@dataclass(frozen=True)
class Shard:
    """A unit of transfer and locking: consecutive pieces, together at most a slice.

    `begin` and `elements` refer to the numbers of its server.
    """

    number: int
    begin: int
    elements: int
    pieces: Tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Its size in transit."""
        return self.elements * FLOAT_BYTES

    def place_of(self, element: int) -> Tuple[str, int]:
        """The parameter and the flat index of one of the shard's elements."""
        for piece in self.pieces:
            inside = self.begin + element - piece.offset
            if 0 <= inside < piece.block.elements:
                return piece.block.parameter, piece.block.begin + inside
        raise IndexError("shard %d has no element %d" % (self.number, element))


@dataclass(frozen=True)
class Plan:
    """All parameters and their locations. `shards` lists those of each server."""

    servers: int
    policy: str
    dense: Tuple[Parameter, ...]
    tables: Tuple[Table, ...]
    shards: Tuple[Tuple[Shard, ...], ...]

    def elements_of(self, server: int) -> int:
        """The count of dense numbers on one server."""
        return sum(shard.elements for shard in self.shards[server])

    def rows_of(self, server: int, table: Table) -> int:
        """The number of rows of a table on one server."""
        return partition.rows_held(table.rows, self.servers)[server]

    def bytes_of(self, server: int) -> int:
        """The total size of one server's data, in bytes."""
        rows = sum(self.rows_of(server, table) * table.width for table in self.tables)
        return (self.elements_of(server) + rows) * FLOAT_BYTES

    def imbalance(self) -> float:
        """The largest size of a server's data divided by the mean."""
        return partition.imbalance([self.bytes_of(server) for server in range(self.servers)])

    def digest(self) -> str:
        """SHA-256 over names, shapes, dtype and places: equal plans have equal digests."""
        values = {
            "layout": LAYOUT,
            "dtype": "float32",
            "dense": [[p.name, list(p.shape)] for p in self.dense],
            "tables": [[t.name, t.rows, t.width] for t in self.tables],
            "servers": self.servers,
            "policy": self.policy,
            "places": [
                [[p.block.parameter, p.block.begin, p.block.elements] for shard in mine for p in shard.pieces]
                for mine in self.shards
            ],
        }
        return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode("utf-8")).hexdigest()

    def parameters(self) -> List[List[Any]]:
        """Names and shapes as JSON, to find the tensor that differs if the digests do."""
        return [[p.name, list(p.shape)] for p in self.dense] + [[t.name, [t.rows, t.width]] for t in self.tables]


def make(
    dense: Sequence[Parameter],
    tables: Sequence[Table],
    servers: int,
    *,
    policy: str = "size",
    least_block: Optional[int] = None,
    slice_bytes: int = SLICE_BYTES,
) -> Plan:
    """Make the plan for these parameters.

    Args:
        policy: a key of `partition.POLICIES`.
        least_block: first divide each parameter by the number of servers, as a job's own framework does, into blocks of
        at least this many elements; without it only parameters larger than a slice are divided.

    Raises ValueError naming the valid policies.
    """
    if policy not in partition.POLICIES:
        raise ValueError("unknown policy %r; expected one of %s" % (policy, ", ".join(sorted(partition.POLICIES))))
    blocks = [block for p in dense for block in partition.cut(p.name, p.shape, servers, least_block) if block.elements]
    slices = partition.sliced(blocks, slice_bytes // FLOAT_BYTES)
    held = partition.POLICIES[policy](slices, servers)
    shards = tuple(_packed(mine, slice_bytes // FLOAT_BYTES) for mine in held)
    return Plan(servers, policy, tuple(dense), tuple(tables), shards)


def _packed(blocks: Sequence[Block], max_elements: int) -> Tuple[Shard, ...]:
    """Blocks of one server in sequence, in as few shards as `max_elements` elements per shard allow in this order."""
    found: List[Shard] = []
    pieces: List[Piece] = []
    begin = offset = 0
    for block in blocks:
        if pieces and offset + block.elements - begin > max_elements:
            found.append(Shard(len(found), begin, offset - begin, tuple(pieces)))
            pieces, begin = [], offset
        pieces.append(Piece(block, offset))
        offset += block.elements
    if pieces:
        found.append(Shard(len(found), begin, offset - begin, tuple(pieces)))
    return tuple(found)


def difference(mine: Sequence[Any], theirs: Any) -> str:
    """A description of the first difference between two parameter lists; empty if they are equal."""
    if not isinstance(theirs, list):
        return "the list of parameters is missing"
    for number, (own, other) in enumerate(zip(mine, theirs)):
        if own != other:
            return "parameter %d is %s here and %s there" % (number, _words(own), _words(other))
    if len(mine) != len(theirs):
        longer, where = (mine, "here") if len(mine) > len(theirs) else (theirs, "there")
        at = min(len(mine), len(theirs))
        return "parameter %d, %s, is only %s" % (at, _words(longer[at]), where)
    return ""


def _words(parameter: Any) -> str:
    if isinstance(parameter, (list, tuple)) and len(parameter) == 2:
        return "%s %s" % (str(parameter[0])[:80], str(parameter[1])[:80])
    return str(parameter)[:80]


def from_params(params: Dict[str, Any], dense: Sequence[Parameter], tables: Sequence[Table]) -> Plan:
    """The plan from a process's parameters: `servers`, `policy`, `least_block`, `slice_bytes`."""
    least = params.get("least_block")
    return make(
        dense,
        tables,
        int(params["servers"]),
        policy=str(params.get("policy") or "size"),
        least_block=None if least is None else int(least),
        slice_bytes=int(params.get("slice_bytes") or SLICE_BYTES),
    )
