"""Sharded training with both FSDP interfaces, judged by the same oracle as DDP, and the fallback to DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from preflight.agent import rank_events
from reference_trainer.collective import steps
from reference_trainer.collective import steps as sharded

pytestmark = pytest.mark.thorough

Ranks = Callable[..., list[dict[str, Any]]]


def reports(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [a.get("error") for a in answers] == [None] * len(answers), answers[0].get("detail")
    return [a["report"] for a in answers]


def sharding(world_size: int) -> dict[str, dict[str, Any]]:
    return {str(rank): {"sharding": True} for rank in range(world_size)}


@pytest.mark.parametrize(
    ("world_size", "hidden", "trainer"),
    [
        (2, [], sharded.FSDP2),
        (3, [], sharded.FSDP2),
        (2, ["torch.distributed.fsdp.fully_shard"], sharded.FSDP1),
    ],
)
def test_sharded_training_equals_one_process(ranks: Ranks, world_size: int, hidden: list[str], trainer: str) -> None:
    found = reports(ranks(world_size, steps=10, overrides=sharding(world_size), hidden=hidden))
    for report in found:
        assert (report["trainer"], report["trainer_note"], report["mismatches"]) == (trainer, "", [])
        assert report["unmoved"] == [] and len(set(report["digests"])) == 1
        assert report["losses"][-1] < steps.MAX_LOSS_RATIO * report["losses"][0]
    assert found[0]["difference_to_one_process"] <= steps.TOLERANCE
    assert list(found[0]["phase_at_s"]) == list(rank_events.ORDER)


def test_sharded_and_replicated_training_differ_only_by_rounding(ranks: Ranks) -> None:
    whole = reports(ranks(2, steps=10))
    parts = reports(ranks(2, steps=10, overrides=sharding(2)))
    assert whole[0]["trainer"] == sharded.DDP
    assert whole[0]["losses"] == pytest.approx(parts[0]["losses"], abs=1e-6)


def test_backend_without_sharding_falls_back_to_ddp(ranks: Ranks) -> None:
    dist = pytest.importorskip("torch.distributed")
    flat = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    faults = [
        {"operation": name, "kind": "missing", "at_least": 1, "rank": rank}
        for rank in range(2)
        for name in (flat, "reduce_scatter")
    ]
    for report in reports(ranks(2, steps=3, overrides=sharding(2), faults=faults)):
        assert report["trainer"] == sharded.DDP and "no reduce_scatter" in report["trainer_note"]
        assert report["steps"] == 3
