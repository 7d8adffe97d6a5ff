"""How parameters are cut and given to servers: dense ones in blocks, tables by rows. Pure arithmetic.

Trainers and servers, and whoever judges a job before it runs, must come to the same answer, so it is written once. All
functions give the same for the same input in every process: nothing here uses Python's own `hash`.
"""

from __future__ import annotations

import zlib
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from preflight.node.record import dataclass

FLOAT_BYTES = 4
#: The largest piece that travels and is locked as a whole. On loopback every transport is fastest with 1 to 16 MiB, and
#: BytePS cuts at 4,096,000 bytes (BYTEPS_PARTITION_BYTES).
SLICE_BYTES = 4 * 1024 * 1024
#: Elements below which Paddle's transpiler does not cut a parameter (DistributeTranspilerConfig, Fluid 0.14 to 1.8).
LEAST_BLOCK = 8192
#: Shares smaller than this cost nothing, however unequal they are.
NEGLIGIBLE_BYTES = 2**20
#: What an optimizer keeps for each parameter beside its value; for others none is assumed.
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
    """A stretch of one parameter: `elements` of it from `begin` on, flattened."""

    parameter: str
    index: int
    begin: int
    elements: int


def product(shape: Iterable[int]) -> int:
    """The number of elements of a shape."""
    result = 1
    for size in shape:
        result *= size
    return result


def sizes_of_blocks(shape: Sequence[int], servers: int, least: int = LEAST_BLOCK) -> Tuple[int, ...]:
    """The sizes in elements into which one parameter is cut for so many servers.

    As Paddle's `slice_variable` does it (fluid/transpiler/distribute_transpiler.py, 1.8.5): at most one block a server,
    none below `least` elements, and a block of a matrix holds whole rows.
    """
    elements = product(shape)
    if elements <= 0 or servers <= 0:
        return ()
    count = min(servers, max(1, elements // max(1, least)))
    size = -(-elements // count)
    if len(shape) > 1:
        row = product(shape[1:])
        size += -size % row
    return tuple(min(size, elements - index * size) for index in range(-(-elements // size)))


def cut(name: str, shape: Sequence[int], servers: int, least: Optional[int] = LEAST_BLOCK) -> List[Block]:
    """The blocks of one parameter; one block of all of it where `least` is None."""
    sizes = (product(shape),) if least is None else sizes_of_blocks(shape, servers, least)
    blocks: List[Block] = []
    begin = 0
    for index, elements in enumerate(sizes):
        blocks.append(Block(name, index, begin, elements))
        begin += elements
    return blocks


def in_turn(blocks: Sequence[Block], servers: int) -> List[List[Block]]:
    """The blocks of each server when they are dealt out one after the other (Paddle's RoundRobin)."""
    held: List[List[Block]] = [[] for _ in range(servers)]
    for turn, block in enumerate(blocks):
        held[turn % servers].append(block)
    return held


def by_name(blocks: Sequence[Block], servers: int) -> List[List[Block]]:
    """The blocks of each server by a hash of their names, which is the same in every process."""
    held: List[List[Block]] = [[] for _ in range(servers)]
    for block in blocks:
        key = "%s.block%d" % (block.parameter, block.index)
        held[zlib.crc32(key.encode("utf-8")) % servers].append(block)
    return held


def by_size(blocks: Sequence[Block], servers: int) -> List[List[Block]]:
    """The blocks of each server, the largest first, each to whoever holds least; among equals to the first."""
    held: List[List[Block]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for block in sorted(blocks, key=lambda block: (-block.elements, block.parameter, block.index)):
        chosen = loads.index(min(loads))
        held[chosen].append(block)
        loads[chosen] += block.elements
    return held


#: How blocks are given to servers, by the word for it.
POLICIES = {"round-robin": in_turn, "hash": by_name, "size": by_size}


def rows_held(rows: int, servers: int) -> Tuple[int, ...]:
    """How many rows of a table each server holds when row number modulo servers decides, as for sparse tables."""
    return tuple(rows // servers + (1 if index < rows % servers else 0) for index in range(servers))


def server_of_row(row: int, servers: int) -> int:
    """Which server holds a row."""
    return row % servers


def bytes_held(
    dense: Sequence[Sequence[int]],
    tables: Sequence[Tuple[int, int]],
    servers: int,
    *,
    least: Optional[int] = LEAST_BLOCK,
    policy: str = "round-robin",
    slots: int = 0,
    element_bytes: int = FLOAT_BYTES,
) -> List[int]:
    """What each server keeps in memory: blocks of dense parameters and rows of tables, with the optimizer's values.

    Args:
        dense: shapes in the order in which the program makes them.
        tables: rows and width of each table that lies on the servers by rows.
        slots: values that the optimizer keeps beside each one.
    """
    blocks = [block for number, shape in enumerate(dense) for block in cut(str(number), shape, servers, least)]
    held = [sum(block.elements for block in mine) for mine in POLICIES[policy](blocks, servers)]
    for rows, width in tables:
        held = [before + mine * width for before, mine in zip(held, rows_held(rows, servers))]
    return [elements * element_bytes * (1 + slots) for elements in held]


def sliced(blocks: Iterable[Block], most: int = SLICE_BYTES // FLOAT_BYTES) -> List[Block]:
    """The same blocks, none of more than `most` elements, numbered anew within each parameter."""
    found: List[Block] = []
    numbers: Dict[str, int] = {}
    for block in blocks:
        for begin in range(0, block.elements, most):
            number = numbers.get(block.parameter, 0)
            numbers[block.parameter] = number + 1
            found.append(Block(block.parameter, number, block.begin + begin, min(most, block.elements - begin)))
    return found


def overloaded(loads: Sequence[int]) -> Tuple[int, ...]:
    """Which of these hold more than twice the mean, and not next to nothing: one server that all others wait for."""
    mean = sum(loads) / len(loads) if loads else 0.0
    return tuple(index for index, load in enumerate(loads) if load > 2 * mean and load > NEGLIGIBLE_BYTES)


def imbalance(loads: Sequence[int]) -> float:
    """The largest load against the mean one; 1.0 when there is nothing."""
    return max(loads) * len(loads) / sum(loads) if loads and sum(loads) else 1.0
