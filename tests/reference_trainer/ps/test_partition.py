"""Parameters are divided and assigned to servers without loss or duplication, equally in every process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_trainer.ps.partition import (
    OPTIMIZER_SLOTS,
    POLICIES,
    bytes_held,
    cut,
    product,
    rows_held,
    sizes_of_blocks,
)

SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("shape", "servers", "sizes"),
    [
        ((100,), 4, (100,)),
        ((40000,), 4, (10000, 10000, 10000, 10000)),
        ((20000,), 4, (10000, 10000)),
        ((1000, 64), 4, (16000, 16000, 16000, 16000)),
        ((10, 10000), 8, (20000, 20000, 20000, 20000, 20000)),
        ((3, 8192), 2, (16384, 8192)),
        ((0,), 4, ()),
        ((5,), 0, ()),
    ],
)
def test_blocks_as_the_transpiler_cuts_them(shape: tuple[int, ...], servers: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of_blocks(shape, servers) == sizes


@given(shape=SHAPES, servers=st.integers(1, 40), least=st.integers(1, 5000))
def test_blocks_cover_a_parameter_once(shape: list[int], servers: int, least: int) -> None:
    blocks = cut("w", shape, servers, least)
    assert sum(block.elements for block in blocks) == product(shape)
    assert [block.begin for block in blocks] == [
        sum(block.elements for block in blocks[:index]) for index in range(len(blocks))
    ]
    assert len(blocks) <= servers and all(block.elements > 0 for block in blocks)
    if len(shape) > 1:
        assert all(block.begin % product(shape[1:]) == 0 for block in blocks), "whole rows"


@given(shapes=st.lists(SHAPES, max_size=6), servers=st.integers(1, 12))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_block_goes_to_one_server(policy: str, shapes: list[list[int]], servers: int) -> None:
    blocks = [block for number, shape in enumerate(shapes) for block in cut(str(number), shape, servers, 64)]
    held = POLICIES[policy](blocks, servers)
    assert len(held) == servers
    assert sorted((b.parameter, b.index) for mine in held for b in mine) == sorted(
        (b.parameter, b.index) for b in blocks
    )


def test_largest_block_goes_to_the_least_loaded_server() -> None:
    blocks = [*cut("a", (10,), 1), *cut("b", (30,), 1), *cut("c", (20,), 1)]
    assert [[block.parameter for block in mine] for mine in POLICIES["size"](blocks, 2)] == [["b"], ["c", "a"]]


def test_a_hash_of_names_is_the_same_in_every_process() -> None:
    code = (
        "from reference_trainer.ps.partition import *\n"
        "print([[b.index for b in mine] for mine in by_name(cut('w', (10**6,), 7), 7)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and said != {""}


@given(rows=st.integers(0, 10**6), servers=st.integers(1, 50))
def test_rows_are_divided_by_their_number(rows: int, servers: int) -> None:
    held = rows_held(rows, servers)
    assert sum(held) == rows and max(held) - min(held) <= 1
    if rows < 500:
        counted = [0] * servers
        for row in range(rows):
            counted[row % servers] += 1
        assert tuple(counted) == held


def test_bytes_with_the_optimizers_own_values() -> None:
    slots = OPTIMIZER_SLOTS["Adam"]
    held = bytes_held([(1000, 10)], [(1001, 8)], 2, min_elements=None, slots=slots)
    assert held == [(10000 + 501 * 8) * 4 * 3, 500 * 8 * 4 * 3]
    assert bytes_held([(100,)], [], 3) == [400, 0, 0]
