"""The assignment of parameters in one run: every process computes the same plan, and only its digest is sent.

Trainers, servers, and rules that judge a job before it runs must arrive at the same answer, so this code exists only
once. All functions give the same result for the same input in every process: Python's own `hash` is not used.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

FLOAT_BYTES = 4
#: The largest piece that is sent and locked as a whole. On loopback every transport is fastest with 1 to 16 MiB, and
#: BytePS splits at 4,096,000 bytes (BYTEPS_PARTITION_BYTES).
SLICE_BYTES = 4 * 1024 * 1024
#: Elements below which Paddle's transpiler does not split a parameter (DistributeTranspilerConfig, Fluid 0.14 to 1.8).
MIN_BLOCK = 8192
#: Shares smaller than this are negligible, however unequal they are.
NEGLIGIBLE_BYTES = 2**20
#: Number of values that an optimizer keeps per parameter in addition to its value; 0 for other optimizers.
OPTIMIZER_SLOTS = {
    "Momentum": 1,
    "LarsMomentum": 1,
    "Adagrad": 1,
    "DecayedAdagrad": 1,
    "RMSProp": 2,
    "Adadelta": 2,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "Lamb": 2,
    "Ftrl": 2,
}


@dataclass(frozen=True)
class Block:
    """A part of one flattened parameter: `elements` of it starting at `begin`."""

    parameter: str
    index: int
    begin: int
    elements: int


def product(shape: Iterable[int]) -> int:
    """Return the number of elements of a shape."""
    result = 1
    for size in shape:
        result *= size
    return result


def sizes_of_blocks(shape: Sequence[int], servers: int, min_elements: int = MIN_BLOCK) -> tuple[int, ...]:
    """Return the sizes in elements of the blocks of one parameter for this many servers.

    As in Paddle's `slice_variable` (fluid/transpiler/distribute_transpiler.py, 1.8.5): at most one block per server,
    none with fewer than `min_elements` elements, and a block of a matrix contains whole rows.
    """
    elements = product(shape)
    if elements <= 0 or servers <= 0:
        return ()
    count = min(servers, max(1, elements // max(1, min_elements)))
    size = -(-elements // count)
    if len(shape) > 1:
        row = product(shape[1:])
        size += -size % row
    return tuple(min(size, elements - index * size) for index in range(-(-elements // size)))


def cut_into_blocks(name: str, shape: Sequence[int], servers: int, min_elements: int | None = MIN_BLOCK) -> list[Block]:
    """Return the blocks of one parameter; a single block if `min_elements` is None."""
    sizes = (product(shape),) if min_elements is None else sizes_of_blocks(shape, servers, min_elements)
    blocks: list[Block] = []
    begin = 0
    for index, elements in enumerate(sizes):
        blocks.append(Block(name, index, begin, elements))
        begin += elements
    return blocks


def assign_in_turn(blocks: Sequence[Block], servers: int) -> list[list[Block]]:
    """Return the blocks of each server when they are assigned in turn (Paddle's RoundRobin)."""
    held: list[list[Block]] = [[] for _ in range(servers)]
    for turn, block in enumerate(blocks):
        held[turn % servers].append(block)
    return held


def assign_by_name(blocks: Sequence[Block], servers: int) -> list[list[Block]]:
    """Return the blocks of each server, by a hash of their names that is the same in every process."""
    held: list[list[Block]] = [[] for _ in range(servers)]
    for block in blocks:
        key = f"{block.parameter}.block{block.index}"
        held[zlib.crc32(key.encode("utf-8")) % servers].append(block)
    return held


def assign_by_size(blocks: Sequence[Block], servers: int) -> list[list[Block]]:
    """Return each server's blocks: largest first, each goes to the least loaded server; ties go to the first."""
    held: list[list[Block]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for block in sorted(blocks, key=lambda block: (-block.elements, block.parameter, block.index)):
        chosen = loads.index(min(loads))
        held[chosen].append(block)
        loads[chosen] += block.elements
    return held


#: Policies that assign blocks to servers, by name.
POLICIES = {"round-robin": assign_in_turn, "hash": assign_by_name, "size": assign_by_size}


def rows_held(rows: int, servers: int) -> tuple[int, ...]:
    """Return the number of rows on each server, chosen by row number modulo servers, as for sparse tables."""
    return tuple(rows // servers + (1 if index < rows % servers else 0) for index in range(servers))


def bytes_held(
    dense: Sequence[Sequence[int]],
    tables: Sequence[tuple[int, int]],
    servers: int,
    *,
    min_elements: int | None = MIN_BLOCK,
    policy: str = "round-robin",
    slots: int = 0,
) -> list[int]:
    """Return the memory of each server: blocks of dense parameters and rows of tables, with the optimizer's values.

    Args:
        dense: shapes in the order in which the program creates them.
        tables: rows and width of each table that is divided by rows.
        slots: values that the optimizer keeps beside each one.
    """
    blocks = [
        block
        for number, shape in enumerate(dense)
        for block in cut_into_blocks(str(number), shape, servers, min_elements)
    ]
    held = [sum(block.elements for block in mine) for mine in POLICIES[policy](blocks, servers)]
    for rows, width in tables:
        held = [before + mine * width for before, mine in zip(held, rows_held(rows, servers))]
    return [elements * FLOAT_BYTES * (1 + slots) for elements in held]


def slice_blocks(blocks: Iterable[Block], max_elements: int = SLICE_BYTES // FLOAT_BYTES) -> list[Block]:
    """Return the blocks in pieces of at most `max_elements` elements, renumbered within each parameter."""
    found: list[Block] = []
    numbers: dict[str, int] = {}
    for block in blocks:
        for begin in range(0, block.elements, max_elements):
            number = numbers.get(block.parameter, 0)
            numbers[block.parameter] = number + 1
            found.append(Block(block.parameter, number, block.begin + begin, min(max_elements, block.elements - begin)))
    return found


def overloaded(loads: Sequence[int]) -> tuple[int, ...]:
    """Return the servers with more than twice the mean load, for which all wait; empty if that is negligible."""
    mean = sum(loads) / len(loads) if loads else 0.0
    return tuple(index for index, load in enumerate(loads) if load > 2 * mean and load > NEGLIGIBLE_BYTES)


def imbalance(loads: Sequence[int]) -> float:
    """Return the largest load divided by the mean load; 1.0 if nothing is loaded."""
    return max(loads) * len(loads) / sum(loads) if loads and sum(loads) else 1.0


#: Everything except the parameters that the layout of the wire and of a server's memory depends on.
LAYOUT = 1


@dataclass(frozen=True)
class Parameter:
    """A dense parameter: its name and shape. All numbers are float32."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return product(self.shape)


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
    """A unit of transfer and locking: consecutive pieces, located by `begin` in the numbers of its server."""

    number: int
    begin: int
    elements: int
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Return the shard's size in transit."""
        return self.elements * FLOAT_BYTES

    def place_of(self, element: int) -> tuple[str, int]:
        """Return the parameter and the flat index of one of the shard's elements."""
        for piece in self.pieces:
            inside = self.begin + element - piece.offset
            if 0 <= inside < piece.block.elements:
                return piece.block.parameter, piece.block.begin + inside
        raise IndexError(f"shard {self.number} has no element {element}")


@dataclass(frozen=True)
class Plan:
    """All parameters and their locations. `shards` lists those of each server."""

    servers: int
    policy: str
    dense: tuple[Parameter, ...]
    tables: tuple[Table, ...]
    shards: tuple[tuple[Shard, ...], ...]

    def elements_of(self, server: int) -> int:
        return sum(shard.elements for shard in self.shards[server])

    def rows_of(self, server: int, table: Table) -> int:
        return rows_held(table.rows, self.servers)[server]

    def bytes_of(self, server: int) -> int:
        """Return the total size of one server's data, in bytes."""
        rows = sum(self.rows_of(server, table) * table.width for table in self.tables)
        return (self.elements_of(server) + rows) * FLOAT_BYTES

    def imbalance(self) -> float:
        """Return the largest size of a server's data divided by the mean."""
        return imbalance([self.bytes_of(server) for server in range(self.servers)])

    def digest(self) -> str:
        """Return the SHA-256 over names, shapes, dtype and places: equal plans have equal digests."""
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

    def parameters(self) -> list[list[Any]]:
        """Return names and shapes as JSON, to find the tensor that differs if the digests do."""
        return [[p.name, list(p.shape)] for p in self.dense] + [[t.name, [t.rows, t.width]] for t in self.tables]


def make_plan(
    dense: Sequence[Parameter],
    tables: Sequence[Table],
    servers: int,
    *,
    policy: str = "size",
    least_block: int | None = None,
    slice_bytes: int = SLICE_BYTES,
) -> Plan:
    """Make the plan for these parameters.

    Args:
        policy: a key of `POLICIES`.
        least_block: first divide each parameter by the number of servers, as a job's own framework does, into blocks of
        at least this many elements; without it only parameters larger than a slice are divided.

    Raises ValueError naming the valid policies.
    """
    if policy not in POLICIES:
        raise ValueError("unknown policy {!r}; expected one of {}".format(policy, ", ".join(sorted(POLICIES))))
    blocks = [
        block for p in dense for block in cut_into_blocks(p.name, p.shape, servers, least_block) if block.elements
    ]
    slices = slice_blocks(blocks, slice_bytes // FLOAT_BYTES)
    held = POLICIES[policy](slices, servers)
    shards = tuple(_pack(mine, slice_bytes // FLOAT_BYTES) for mine in held)
    return Plan(servers, policy, tuple(dense), tuple(tables), shards)


def _pack(blocks: Sequence[Block], max_elements: int) -> tuple[Shard, ...]:
    """Return a server's blocks in sequence, in as few shards of at most `max_elements` elements as possible."""
    shards: list[Shard] = []
    pieces: list[Piece] = []
    begin = offset = 0
    for block in blocks:
        if pieces and offset + block.elements - begin > max_elements:
            shards.append(Shard(len(shards), begin, offset - begin, tuple(pieces)))
            pieces, begin = [], offset
        pieces.append(Piece(block, offset))
        offset += block.elements
    if pieces:
        shards.append(Shard(len(shards), begin, offset - begin, tuple(pieces)))
    return tuple(shards)


def difference(mine: Sequence[Any], theirs: Any) -> str:
    """Return a description of the first difference between two lists of parameters; empty if the lists are equal."""
    if not isinstance(theirs, list):
        return "the list of parameters is missing"
    for number, (own, other) in enumerate(zip(mine, theirs)):
        if own != other:
            return "parameter %d is %s here, but %s there" % (number, _words(own), _words(other))
    if len(mine) != len(theirs):
        longer, where = (mine, "here") if len(mine) > len(theirs) else (theirs, "there")
        at = min(len(mine), len(theirs))
        return "parameter %d, %s, is only %s" % (at, _words(longer[at]), where)
    return ""


def _words(parameter: Any) -> str:
    if isinstance(parameter, (list, tuple)) and len(parameter) == 2:
        return f"{str(parameter[0])[:80]} {str(parameter[1])[:80]}"
    return str(parameter)[:80]


def from_params(params: dict[str, Any], dense: Sequence[Parameter], tables: Sequence[Table]) -> Plan:
    """Return the plan from a process's parameters: `servers`, `policy`, `least_block`, `slice_bytes`."""
    least = params.get("least_block")
    return make_plan(
        dense,
        tables,
        int(params["servers"]),
        policy=str(params.get("policy") or "size"),
        least_block=None if least is None else int(least),
        slice_bytes=int(params.get("slice_bytes") or SLICE_BYTES),
    )
