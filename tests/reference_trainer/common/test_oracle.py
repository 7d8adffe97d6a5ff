"""The arithmetic of the oracle, without any process: closed forms, decoding, and limits."""

from __future__ import annotations

import random

import pytest

from reference_trainer.common import oracle

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.thorough
CPU = "cpu"


def summed(order: list[int], world_size: int, elements: int, salt: int = 3) -> object:
    total = torch.zeros(elements)
    for rank in order:
        total = total + oracle.contribution(rank, world_size, elements, salt, CPU)
    return total


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, 9, 20, 64])
@pytest.mark.parametrize("elements", [1, 1000])
def test_any_order_of_summing_gives_the_closed_form_bit_for_bit(world_size: int, elements: int) -> None:
    expected = oracle.expected_sum(world_size, elements, 3, CPU)
    for seed in range(3):
        order = list(range(world_size))
        random.Random(seed).shuffle(order)
        assert oracle.compare("sum", 0, summed(order, world_size, elements), expected) is None


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 9, 20])
def test_every_lost_and_doubled_contribution_is_decoded(world_size: int) -> None:
    expected = oracle.expected_sum(world_size, 1000, 3, CPU)
    unit = oracle.coded_units(world_size, 1000, 3, CPU)
    for rank in range(world_size):
        for times in (0, 2):
            order = [r for r in range(world_size) if r != rank] + [rank] * times
            got = summed(order, world_size, 1000)
            found = oracle.compare("sum", 0, got, expected, unit=unit, world_size=world_size)
            assert found is not None
            assert found.contributions == {str(rank): times}


def test_two_faults_at_once_are_both_named() -> None:
    expected = oracle.expected_sum(4, 100, 3, CPU)
    got = summed([0, 1, 1, 3], 4, 100)
    found = oracle.compare("sum", 0, got, expected, unit=oracle.coded_units(4, 100, 3, CPU), world_size=4)
    assert found is not None
    assert found.explanation == (
        "the contribution of rank 1 was added 2 times and the contribution of rank 2 is missing"
    )


@pytest.mark.parametrize("bit", range(32))
def test_any_flipped_bit_is_found(bit: int) -> None:
    expected = oracle.expected_sum(3, 1000, 3, CPU)
    got = expected.clone()
    got.view(torch.int32)[500] ^= (1 << bit) if bit < 31 else -(1 << 31)
    found = oracle.compare("sum", 1, got, expected, unit=oracle.coded_units(3, 1000, 3, CPU), world_size=3)
    assert found is not None
    assert (found.wrong, found.index, found.flipped_bits) == (1, 500, f"0x{1 << bit:08x}")
    assert f"bit {bit}" in found.explanation


def test_swapped_chunks_are_found() -> None:
    expected = oracle.expected_sum(4, 1000, 3, CPU)
    got = torch.cat([expected[500:], expected[:500]])
    found = oracle.compare("sum", 0, got, expected, unit=oracle.coded_units(4, 1000, 3, CPU), world_size=4)
    assert found is not None
    assert found.wrong > 500


def test_sums_stay_exact_over_the_longest_run() -> None:
    # Bits of the largest sum of one window over all steps, in quanta of an eighth, and the starting weight.
    quanta = oracle.total(0, oracle.WINDOW) * oracle.MAX_EXACT_STEPS + int(5 / oracle.LEARNING_RATE)
    assert quanta < 2**24
    for world_size in (1, 2, 8, 64, 1000):
        largest = oracle.mantissa_limit(world_size) * oracle.total_weight(world_size) * oracle.MAX_EXACT_STEPS
        assert largest + int(5 / oracle.LEARNING_RATE) < 2**24
    assert max(abs(f) for f in oracle._BATCH) * oracle.digit(oracle.WINDOW - 1) < 2**24


@pytest.mark.parametrize("world_size", [2, 3, 8, 64])
def test_half_precision_changes_inputs_and_sums(world_size: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for tensor in (
            oracle.contribution(1, world_size, 1000, 3, CPU),
            oracle.expected_sum(world_size, 1000, 3, CPU),
            oracle._sender_values(1, 1000, CPU),
        ):
            assert not torch.equal(tensor.to(dtype).to(torch.float32), tensor)


def test_every_step_has_values_of_its_own() -> None:
    steps = [oracle.contribution(1, 3, 1000, 3, CPU, step) for step in range(oracle.MAX_EXACT_STEPS)]
    assert len({tuple(step.tolist()) for step in steps}) == len(steps)
