"""Who holds what in one run: every process computes the same plan for itself, and only its digest travels."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

from preflight.node.record import dataclass
from reference_trainer.ps import sharding
from reference_trainer.ps.sharding import FLOAT_BYTES, SLICE_BYTES, Block

#: What the layout of the wire and of a server's memory depends on beside the parameters themselves.
LAYOUT = 1


@dataclass(frozen=True)
class Parameter:
    """A dense parameter: its name and shape. float32, as everything here."""

    name: str
    shape: Tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return sharding.product(self.shape)


@dataclass(frozen=True)
class Table:
    """A sparse parameter: rows of one width, which lie on the servers by row number."""

    name: str
    rows: int
    width: int


@dataclass(frozen=True)
class Piece:
    """Where a block of a parameter lies: from `offset` on in the numbers of its server."""

    block: Block
    offset: int


@dataclass(frozen=True)
class Shard:
    """What travels and is locked as a whole: pieces that follow each other, together at most a slice.

    `begin` and `elements` are in the numbers of its server.
    """

    number: int
    begin: int
    elements: int
    pieces: Tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Its size on the wire."""
        return self.elements * FLOAT_BYTES

    def place_of(self, element: int) -> Tuple[str, int]:
        """Parameter and flat index of one of its elements."""
        for piece in self.pieces:
            inside = self.begin + element - piece.offset
            if 0 <= inside < piece.block.elements:
                return piece.block.parameter, piece.block.begin + inside
        raise IndexError("shard %d has no element %d" % (self.number, element))


@dataclass(frozen=True)
class Plan:
    """All parameters and their places. `shards` are those of each server."""

    servers: int
    policy: str
    dense: Tuple[Parameter, ...]
    tables: Tuple[Table, ...]
    shards: Tuple[Tuple[Shard, ...], ...]

    def elements_of(self, server: int) -> int:
        """Dense numbers on one server."""
        return sum(shard.elements for shard in self.shards[server])

    def rows_of(self, server: int, table: Table) -> int:
        """Rows of a table on one server."""
        return sharding.rows_held(table.rows, self.servers)[server]

    def bytes_of(self, server: int) -> int:
        """Everything on one server, in bytes."""
        rows = sum(self.rows_of(server, table) * table.width for table in self.tables)
        return (self.elements_of(server) + rows) * FLOAT_BYTES

    def imbalance(self) -> float:
        """Largest against mean bytes of a server."""
        return sharding.imbalance([self.bytes_of(server) for server in range(self.servers)])

    def digest(self) -> str:
        """SHA-256 over names, shapes, dtype and places: equal plans have equal ones."""
        said = {
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
        return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode("utf-8")).hexdigest()

    def parameters(self) -> List[List[Any]]:
        """Names and shapes as JSON, to say which tensor differs where digests do."""
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
    """The plan for these parameters.

    Args:
        policy: a key of `sharding.POLICIES`.
        least_block: cut each parameter for the number of servers first, as a job's own framework does, but not below
            so many elements; without it only what is larger than a slice is cut.

    Raises ValueError naming the policies there are.
    """
    if policy not in sharding.POLICIES:
        raise ValueError("there is no policy %r; there are %s" % (policy, ", ".join(sorted(sharding.POLICIES))))
    blocks = [block for p in dense for block in sharding.cut(p.name, p.shape, servers, least_block) if block.elements]
    slices = sharding.sliced(blocks, slice_bytes // FLOAT_BYTES)
    held = sharding.POLICIES[policy](slices, servers)
    shards = tuple(_packed(mine, slice_bytes // FLOAT_BYTES) for mine in held)
    return Plan(servers, policy, tuple(dense), tuple(tables), shards)


def _packed(blocks: Sequence[Block], most: int) -> Tuple[Shard, ...]:
    """Blocks of one server one behind the other, as few shards as `most` elements a shard allow in this order."""
    found: List[Shard] = []
    pieces: List[Piece] = []
    begin = offset = 0
    for block in blocks:
        if pieces and offset + block.elements - begin > most:
            found.append(Shard(len(found), begin, offset - begin, tuple(pieces)))
            pieces, begin = [], offset
        pieces.append(Piece(block, offset))
        offset += block.elements
    if pieces:
        found.append(Shard(len(found), begin, offset - begin, tuple(pieces)))
    return tuple(found)


def difference(mine: Sequence[Any], theirs: Any) -> str:
    """The first parameter that two lists do not have in common, in words; empty when they are equal."""
    if not isinstance(theirs, list):
        return "no list of parameters came"
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
    """The plan of a process as it was told: `servers`, `policy`, `least_block`, `slice_bytes`."""
    least = params.get("least_block")
    return make(
        dense,
        tables,
        int(params["servers"]),
        policy=str(params.get("policy") or "size"),
        least_block=None if least is None else int(least),
        slice_bytes=int(params.get("slice_bytes") or SLICE_BYTES),
    )
