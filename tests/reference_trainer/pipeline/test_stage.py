"""Ranks as stages of a pipeline: exact under every schedule, every fault attributed to its stage and microbatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from preflight.agent import rank_events
from reference_trainer.pipeline import stage
from reference_trainer.pipeline import stage as schedules

pytestmark = pytest.mark.thorough

Ranks = Callable[..., list[dict[str, Any]]]


def staged(
    ranks: Ranks, count: int, *, microbatches: int = 4, fault: dict[int, dict[str, Any]] | None = None, **asked: Any
) -> list[dict[str, Any]]:
    """Each rank's report of its stage, with its events."""
    wanted = {"stages": count, "microbatches": microbatches, "schedule": "1f1b", **asked}
    overrides = {
        str(r): {"pipeline": wanted, **({"injected_fault": fault[r]} if fault and r in fault else {})}
        for r in range(count)
    }
    answers = ranks(count, steps=1, overrides=overrides)
    assert [answer.get("error") for answer in answers] == [None] * count
    return [{**answer["report"]["pipeline"], "events": answer["events"]} for answer in answers]


@pytest.mark.parametrize(
    ("count", "stages", "microbatches", "schedule"),
    [(2, 2, 8, "gpipe"), (2, 2, 1, "1f1b"), (3, 3, 5, "1f1b"), (4, 4, 8, "1f1b"), (4, 2, 3, "gpipe")],
)
def test_a_healthy_pipeline_is_exact_whatever_the_schedule(
    ranks: Ranks, count: int, stages: int, microbatches: int, schedule: str
) -> None:
    reports = staged(ranks, count, stages=stages, microbatches=microbatches, schedule=schedule)
    width = count // stages
    for rank, report in enumerate(reports):
        assert report["faults"] == [] and report["note"] == "" and report["stage"] == rank // width
        inner = 2 if 0 < report["stage"] < stages - 1 else 1
        assert report["compared"] == 3 * (microbatches * (2 + inner) + 2)
        assert len(report["stage_s"]) == stages and report["imbalance"] >= 1.0
        assert report["formula"] == round(schedules.bubble(stages, microbatches), 3)
        assert 0.0 <= report["bubble"] < 1.0
    assert len({tuple(report["stage_s"]) for report in reports}) == 1


def test_lost_microbatch_is_reported_once_by_its_receiver(ranks: Ranks) -> None:
    reports = staged(ranks, 3, fault={0: {"lose_microbatch": 2}})
    assert [len(report["faults"]) for report in reports] == [0, stage.STEPS + 1, 0]
    first = reports[1]["faults"][0]
    assert (first["what"], first["stage"], first["microbatch"], first["sender"]) == ("received activations", 1, 2, 0)
    assert first["explanation"] == "no data of microbatch 2 arrived: all values are zero"


def test_stale_weights_are_found(ranks: Ranks) -> None:
    reports = staged(ranks, 3, fault={0: {"stale_weights": True}})
    assert reports[1]["faults"] == reports[2]["faults"] == []
    found = reports[0]["faults"]
    # Microbatch 0 returns first: no update has happened yet.
    assert [fault["microbatch"] for fault in found] == [1, 2, 3]
    assert {(fault["what"], fault["step"]) for fault in found} == {("gradients", "step without a flush")}
    assert found[0]["explanation"] == (
        "the backward pass used the weights after 1 updates, but the forward pass those after 0: the weights were not "
        "stashed"
    )


def test_a_stage_with_more_work_shows_in_every_report(ranks: Ranks) -> None:
    reports = staged(ranks, 2, fault={1: {"slow_stage": 10}})
    for report in reports:
        assert report["stage_s"][1] > 2 * report["stage_s"][0] and report["imbalance"] > 1.3


def test_every_exchange_announces_the_awaited_rank(ranks: Ranks) -> None:
    reports = staged(ranks, 4, stages=2)
    for rank, report in enumerate(reports):
        message = [
            e for e in report["events"] if e["event"] == rank_events.ENTERING and e["what"].startswith("pipeline step")
        ]
        neighbour = (rank + 2) % 4
        assert message and all(set(event["waiting_for"]) == {neighbour} for event in message)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"stages": 3}, "2 ranks cannot be divided into 3 equal stages"),
        ({"schedule": "zigzag"}, "unknown schedule 'zigzag'; expected one of 1f1b and gpipe"),
        ({"microbatches": 9}, "9 microbatches; 1 to 8 are supported"),
        ({"stages": 1}, "1 stages; 2 to 64 are supported"),
    ],
)
def test_impossible_pipeline_is_explained(asked: dict[str, Any], message: str) -> None:
    wanted = {"stages": 2, "microbatches": 4, "schedule": "1f1b", **asked}
    assert stage.pipeline_problem(2, **wanted) == message
