"""Ranks as stages of a pipeline: exact under every schedule, and every fault laid to its stage and microbatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reference_trainer import phases, pipeline
from reference_trainer import pipeline_schedule as schedules

pytestmark = pytest.mark.smoke

Ranks = Callable[..., list[dict[str, Any]]]


def staged(
    ranks: Ranks, count: int, *, microbatches: int = 4, drill: dict[int, dict[str, Any]] | None = None, **asked: Any
) -> list[dict[str, Any]]:
    """What each rank reported of its stage, with its events."""
    wanted = {"stages": count, "microbatches": microbatches, "schedule": "1f1b", **asked}
    overrides = {
        str(r): {"pipeline": wanted, **({"drill": drill[r]} if drill and r in drill else {})} for r in range(count)
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
        bound = schedules.most_in_flight(schedule, report["stage"], stages, microbatches)
        assert report["most_in_flight"] == bound
        assert len(report["stage_s"]) == stages and report["imbalance"] >= 1.0
        assert report["formula"] == round(schedules.bubble(stages, microbatches), 3)
        assert 0.0 <= report["bubble"] < 1.0
    assert len({tuple(report["stage_s"]) for report in reports}) == 1


def test_a_lost_microbatch_is_named_once_where_it_should_have_come(ranks: Ranks) -> None:
    reports = staged(ranks, 3, drill={0: {"lose_microbatch": 2}})
    assert [len(report["faults"]) for report in reports] == [0, pipeline.STEPS + 1, 0]
    first = reports[1]["faults"][0]
    assert (first["what"], first["stage"], first["microbatch"], first["sender"]) == ("received activations", 1, 2, 0)
    assert first["explanation"] == "nothing of microbatch 2 arrived: all is zero"


def test_stale_weights_are_told_from_stashed_ones(ranks: Ranks) -> None:
    reports = staged(ranks, 3, drill={0: {"stale_weights": True}})
    assert reports[1]["faults"] == reports[2]["faults"] == []
    found = reports[0]["faults"]
    # Microbatch 0 is the first to come back: no update has happened yet.
    assert [fault["microbatch"] for fault in found] == [1, 2, 3]
    assert {(fault["what"], fault["step"]) for fault in found} == {("gradients", "step without a flush")}
    assert found[0]["explanation"] == (
        "the backward pass used the weights after 1 updates, the forward pass those after 0: they were not stashed"
    )


def test_a_stage_with_more_work_shows_in_every_report(ranks: Ranks) -> None:
    reports = staged(ranks, 2, drill={1: {"slow_stage": 10}})
    for report in reports:
        assert report["stage_s"][1] > 2 * report["stage_s"][0] and report["imbalance"] > 1.3


def test_every_exchange_says_whom_it_waits_for(ranks: Ranks) -> None:
    reports = staged(ranks, 4, stages=2)
    for rank, report in enumerate(reports):
        said = [e for e in report["events"] if e["event"] == phases.ENTERING and e["what"].startswith("pipeline step")]
        neighbour = (rank + 2) % 4
        assert said and all(set(event["waiting_for"]) == {neighbour} for event in said)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"stages": 3}, "2 ranks do not divide by 3 stages"),
        ({"schedule": "zigzag"}, "no schedule is called 'zigzag'; there are 1f1b and gpipe"),
        ({"microbatches": 9}, "9 microbatches; 1 to 8 are tried"),
        ({"stages": 1}, "1 stages; 2 to 64 are tried"),
    ],
)
def test_what_makes_no_pipeline_is_said(asked: dict[str, Any], said: str) -> None:
    wanted = {"stages": 2, "microbatches": 4, "schedule": "1f1b", **asked}
    assert pipeline.refused(2, **wanted) == said
