"""Whole ranks over Gloo on loopback: a healthy run, and every corruption attributed to the right rank."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from preflight.agent import rank_events
from reference_trainer.collective import steps
from reference_trainer.collective import steps as sharded

pytestmark = pytest.mark.thorough


Ranks = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_healthy_run_is_exact_on_any_number_of_ranks(ranks: Ranks, world_size: int) -> None:
    answers = ranks(world_size, steps=10)
    assert [a.get("error") for a in answers] == [None] * world_size
    reports = [a["report"] for a in answers]
    assert all(r["mismatches"] == [] and r["unmoved"] == [] for r in reports)
    assert all(r["operations"] >= 4 + world_size + 10 for r in reports)
    assert len({digest for r in reports for digest in r["digests"]}) == 1
    assert all(r["losses"][-1] < steps.MAX_LOSS_RATIO * r["losses"][0] for r in reports)
    assert reports[0]["difference_to_one_process"] <= steps.TOLERANCE
    assert list(reports[0]["phase_at_s"]) == list(rank_events.ORDER)


def test_every_rank_announces_the_same_collectives_in_the_same_order(ranks: Ranks) -> None:
    answers = ranks(3)

    def entered(events: list[dict[str, Any]]) -> dict[int, str]:
        return {e["collective"]: e["what"] for e in events if e["event"] == rank_events.ENTERING and "collective" in e}

    first, *others = [entered(answer["events"]) for answer in answers]
    exact = [number for number, what in first.items() if not _one_of_many(what)]
    assert exact[:16] == list(range(1, 17))
    for other in others:
        assert [number for number, what in other.items() if not _one_of_many(what)] == exact
        assert all(first[number] == what for number, what in other.items() if number in first)


def _one_of_many(what: str) -> bool:
    """Whether ranks report this collective only now and then, each at its own times."""
    return (" step " in what and "exact" not in what) or what.endswith(", timed") or what.startswith("trial ")


def test_every_rank_attributes_a_lost_contribution(ranks: Ranks) -> None:
    answers = ranks(4, fault={"rank": 2, "kind": "lost", "elements": 1000})
    for answer in answers:
        (mismatch,) = answer["report"]["mismatches"]
        assert mismatch["operation"] == "all_reduce of 1000 elements"
        assert mismatch["wrong"] == 1000
        assert mismatch["contributions"] == {"2": 0}
        assert mismatch["explanation"] == "the contribution of rank 2 is missing"


def test_doubled_contribution_is_attributed_to_its_rank(ranks: Ranks) -> None:
    answers = ranks(3, fault={"rank": 1, "kind": "doubled", "elements": 262144})
    for answer in answers:
        (mismatch,) = answer["report"]["mismatches"]
        assert mismatch["contributions"] == {"1": 2}
        assert "rank 1 was added 2 times" in mismatch["explanation"]


def test_flipped_bit_is_seen_only_by_its_own_rank(ranks: Ranks) -> None:
    answers = ranks(3, fault={"rank": 1, "kind": "flipped", "elements": 4096, "index": 77, "bit": 13})
    assert [len(a["report"]["mismatches"]) for a in answers] == [0, 1, 0]
    (mismatch,) = answers[1]["report"]["mismatches"]
    assert (mismatch["rank"], mismatch["index"], mismatch["flipped_bits"]) == (1, 77, "0x00002000")
    assert "bit 13" in mismatch["explanation"]


def test_lost_gradient_shows_in_its_step_and_in_the_final_weights(ranks: Ranks) -> None:
    # The first sum of 4096 elements is a plain all-reduce, the second the first step's gradient.
    answers = ranks(2, fault={"rank": 1, "kind": "lost", "elements": 4096, "call": 2}, steps=2)
    for answer in answers:
        step, weights = answer["report"]["mismatches"]
        assert (step["operation"], step["contributions"]) == ("gradients of exact step 0", {"1": 0})
        assert weights["operation"] == "weights after 2 exact steps"


def test_master_port_in_use_is_reported_before_torch_is_imported(ranks: Ranks) -> None:
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        port = holder.getsockname()[1]
        (answer,) = ranks(1, overrides={"0": {"master_port": port}})
    assert answer["error"] == f"ProbeUnavailable: cannot listen on port {port}: Address already in use"
    problem = answer["events"][-1]
    assert (problem["problem"], problem["result"], problem["port"]) == ("listen", "in-use", port)
    assert not any(e.get("what") == "import of torch" for e in answer["events"])


def test_refused_and_unresolved_masters_are_distinguished(ranks: Ranks) -> None:
    short = {"timeout_s": 0.5}
    refused, unresolved = (
        ranks(2, overrides={"0": {**short, "timeout_s": 1.5}, "1": {**short, **wrong}})[1]
        for wrong in ({"master_port": 1}, {"master_addr": "no-such-node.invalid"})
    )
    results = [[e["result"] for e in a["events"] if e["event"] == rank_events.DIAL] for a in (refused, unresolved)]
    assert results == [["refused"], ["unresolved"]]
    assert "127.0.0.1:1 (refused)" in refused["error"]


def test_two_processes_with_one_rank_are_a_mismatch(ranks: Ranks) -> None:
    answers = ranks(3, overrides={"2": {"rank": 1}, "0": {"timeout_s": 1.5}, "1": {"timeout_s": 1.5}})
    said = [e for a in answers for e in a["events"] if e["event"] == rank_events.PROBLEM and e["problem"] == "mismatch"]
    assert said and all(problem["what"] == "rank" and problem["rank"] == 1 for problem in said)


def test_different_world_sizes_are_a_mismatch(ranks: Ranks) -> None:
    answers = ranks(2, overrides={"1": {"world_size": 3}, "0": {"timeout_s": 1.5}})
    said = [e for a in answers for e in a["events"] if e["event"] == rank_events.PROBLEM and e["problem"] == "mismatch"]
    assert [problem["what"] for problem in said] == ["world_size"]


# Sharded training with both FSDP interfaces, judged by the same oracle as DDP, and the fallback to DDP.


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
