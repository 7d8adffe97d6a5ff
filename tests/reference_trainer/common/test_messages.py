"""Messages whose bits are known: every collective is checked for any number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from reference_trainer.common import messages
from reference_trainer.common.messages import KnownMessage

pytestmark = pytest.mark.thorough

WORLDS = (2, 3, 8, 9, 17)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def all_known(torch: Any, world_size: int, message_bytes: int = 40000) -> list[KnownMessage]:
    elements = messages.elements_of(message_bytes, world_size)
    return [KnownMessage(rank, world_size, elements, torch.device("cpu")) for rank in range(world_size)]


def carried_out(torch: Any, operation: str, sent: list[Any]) -> list[Any]:
    """The result of each rank, computed from all inputs."""
    count = len(sent)
    if operation == messages.ALL_REDUCE:
        return [sum(sent[1:], sent[0].clone())] * count
    if operation == messages.BROADCAST:
        return [sent[0]] * count
    if operation == messages.ALL_GATHER:
        return [torch.cat(sent)] * count
    if operation == messages.REDUCE_SCATTER:
        return list(sum(sent[1:], sent[0].clone()).chunk(count))
    return [torch.cat([one.chunk(count)[rank] for one in sent]) for rank in range(count)]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("operation", messages.OPERATIONS)
def test_expected_results_of_collectives(torch: Any, operation: str, world_size: int) -> None:
    ranks = all_known(torch, world_size)
    results = carried_out(torch, operation, [known.sent(operation) for known in ranks])
    assert [known.check(operation, got, "x") for known, got in zip(ranks, results, strict=True)] == [None] * world_size
    for known, got in zip(ranks, results, strict=True):
        room = known.room(operation)
        assert room is None or room.shape == got.shape


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("operation", [messages.ALL_REDUCE, messages.REDUCE_SCATTER])
def test_lost_part_of_a_sum_is_attributed_to_its_rank(torch: Any, operation: str, world_size: int) -> None:
    ranks = all_known(torch, world_size)
    sent = [known.sent(operation) for known in ranks]
    sent[1].zero_()
    for known, got in zip(ranks, carried_out(torch, operation, sent), strict=True):
        mismatch = known.check(operation, got, "sum")
        assert mismatch is not None and mismatch.contributions == {"1": 0}, mismatch


@pytest.mark.parametrize("operation", messages.OPERATIONS)
def test_one_wrong_bit_is_found(torch: Any, operation: str) -> None:
    ranks = all_known(torch, 3)
    results = carried_out(torch, operation, [known.sent(operation) for known in ranks])
    got = results[2].clone()
    got.view(torch.int32)[100] ^= 1 << 7
    mismatch = ranks[2].check(operation, got, "x")
    assert mismatch is not None and (mismatch.index, mismatch.wrong, mismatch.flipped_bits) == (100, 1, "0x00000080")


@pytest.mark.parametrize("operation", [messages.ALL_GATHER, messages.ALL_TO_ALL])
def test_parts_in_the_wrong_order_are_found(torch: Any, operation: str) -> None:
    ranks = all_known(torch, 3)
    results = carried_out(torch, operation, [known.sent(operation) for known in ranks])
    first, second, third = results[0].chunk(3)
    assert ranks[0].check(operation, torch.cat([second, first, third]), "x") is not None


def test_a_part_that_went_to_the_wrong_rank_is_found(torch: Any) -> None:
    ranks = all_known(torch, 4)
    results = carried_out(torch, messages.ALL_TO_ALL, [known.sent(messages.ALL_TO_ALL) for known in ranks])
    assert ranks[0].check(messages.ALL_TO_ALL, results[1], "x") is not None


def test_blocks_of_a_large_message_differ(torch: Any) -> None:
    known = KnownMessage(0, 2, 1 << 20, torch.device("cpu"))
    blocks = (known.sent(messages.ALL_TO_ALL)).view(-1, 1 << 16)
    assert len({bytes(block.view(torch.uint8)[:4096].tolist()) for block in blocks}) == len(blocks) == 16


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 9, 64, 1000])
def test_all_parts_of_a_message_are_equal(world_size: int) -> None:
    for size in (4096, 1 << 20, 1 << 24):
        elements = messages.elements_of(size, world_size)
        assert elements % world_size == 0
        assert (elements // world_size) % ((world_size + 7) // 8) == 0
        assert 0.5 < elements * 4 / size < 2 or world_size >= 64
