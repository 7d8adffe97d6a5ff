"""The store of a synchronous server: pushes are summed as they arrive, and weights change once in each round."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from reference_trainer.ps.exact import (
    LARGE_BYTES,
    PIECE,
    PUSHED,
    READ,
    ROUND,
    Slot,
    Source,
    Store,
    history_of,
    parts_of,
    piece_size,
)
from reference_trainer.ps.partition import Parameter, Plan, make_plan

torch = pytest.importorskip("torch")
WORKERS = 3
#: A small shard, and one with parts of its own.
PLAN = make_plan([Parameter("small", (1000,)), Parameter("large", (4 * PIECE,))], [], 1, slice_bytes=4 * 4 * PIECE)
assert len(PLAN.shards[0]) == 2


def store_of(plan: Plan = PLAN, workers: int = WORKERS) -> Store:
    return Store(plan, 0, torch.device("cpu"), workers=workers, in_rounds=True)


def push(store: Store, shard: Any, worker: int, clock: int) -> None:
    """Push ones, times the worker's number + 1."""
    numbers = torch.full((shard.elements,), worker + 1.0)
    source = Source(worker, clock)
    if parts_of(shard.elements, LARGE_BYTES) == 1:
        store.apply(shard, numbers, -0.5, source)
    else:
        for piece, mine in enumerate(numbers.split(piece_size(shard.elements))):
            store.apply_piece(shard, piece, mine, -0.5, source)


@pytest.mark.parametrize("order", list(itertools.permutations(range(WORKERS))))
def test_the_order_of_arrival_does_not_matter(order: tuple[int, ...]) -> None:
    store = store_of()
    for clock in range(2):
        for worker in order:
            for shard in store.shards:
                push(store, shard, worker, clock)
            assert bool((store.dense == -3.0 * clock).all()), "weights changed within the round"
        store.add_round(clock)
        assert bool((store.dense == -3.0 * (clock + 1)).all())
        assert all(
            store.versions(shard) == store.versions(shard, part=0) * len(store._totals[shard.number])
            for shard in store.shards
        )


def test_a_part_without_a_push_keeps_its_numbers() -> None:
    store = store_of()
    for clock in range(2):
        for worker in range(WORKERS):
            for shard in store.shards:
                if clock == 0 or shard.number == 0:
                    push(store, shard, worker, clock)
                else:
                    store.count(shard.number, Source(worker, clock), tables=0)
        store.add_round(clock)
    first, second = (store.part(shard) for shard in store.shards)
    assert bool((first == -6.0).all()) and bool((second == -3.0).all())


def test_the_history_names_every_push_before_its_round() -> None:
    store = store_of(make_plan([Parameter("small", (8,))], [], 1))
    store.begin_history()
    (shard,) = store.shards
    for worker in (2, 0, 1):
        push(store, shard, worker, 0)
    store.add_round(0)
    store.read(shard, torch.zeros(8), Source(1, 1))
    assert store.history is not None
    (events,) = history_of(store.history.data(), 1)
    assert [event[:3] for event in events] == [
        (PUSHED, 2, 0),
        (PUSHED, 0, 0),
        (PUSHED, 1, 0),
        (ROUND, 0, 0),
        (READ, 1, 1),
    ]


@pytest.mark.parametrize("workers", [1, 64])
def test_memory_does_not_grow_with_the_workers(workers: int) -> None:
    plan = make_plan([Parameter("weights", (32, PIECE))], [], 1)
    store = store_of(plan, workers)
    held = store.dense.numel() + sum(part.numel() for parts in store._totals for part in parts)
    slot = Slot(store, plan, capacity=lambda table: 0)
    assert held == 2 * plan.elements_of(0)
    assert slot.dense.tensor.numel() + slot.outgoing.tensor.numel() == 2 * max(shard.elements for shard in store.shards)
