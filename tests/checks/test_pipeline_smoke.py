"""Ranks as stages of a pipeline: when they are, and what is said of what they reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.outcome import Severity, Status
from preflight.recording import FactRecord, Facts
from preflight.request import Request, probe_name
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.pipeline_results import pipeline_stage_slow, wrong_pipeline_result
from preflight_checks.smoke.smoke import rank_did_not_finish
from reference_trainer.collective import RankReport, rank
from reference_trainer.pipeline import PipelineReport
from reference_trainer.pipeline_oracle import Fault

from .build import fact, facts, fleet, job, judge, one, plan, statuses

JOB: dict[str, Any] = {
    "backend": "gloo",
    "master_addr": "node0",
    "master_port": 29500,
    "pipeline_parallel_size": 4,
}
LOST = Fault(
    "received activations", 1, 2, "step 0", 0, 2000, 2000, 0, "0.125", "0.0", "nothing of microbatch 2 arrived"
)


def stage(number: int, **changes: Any) -> PipelineReport:
    """A healthy one of four."""
    healthy = PipelineReport(
        4,
        8,
        "1f1b",
        number,
        100,
        forward_s=0.001,
        backward_s=0.002,
        step_s=0.034,
        waited=0.01,
        stage_s=[0.003, 0.0031, 0.003, 0.0029],
        imbalance=1.03,
        bubble=0.29,
        formula=0.273,
    )
    return replace(healthy, **changes)


def ran(report: Callable[[int], PipelineReport | None] = stage, device: str = "cpu") -> Facts:
    records = []
    for number in range(4):
        said = RankReport(number, 4, f"node{number}", "gloo", device, "torch 2.13.0", pipeline=report(number))
        request = Request(
            probe_name(rank), f"node{number}", {"rank": number, "world_size": 4}, context=True, group="smoke train"
        )
        records.append(FactRecord(request, asdict(said)))
    return facts(*records)


def asked(nodes: int = 4, **claims: Any) -> list[Any]:
    requests = plan(rank_did_not_finish, job(**{**JOB, **claims}), fleet(nodes))
    return [request.params.get("pipeline") for request in requests]


def test_ranks_become_stages_where_the_job_has_a_pipeline_that_divides_them() -> None:
    whole = {"stages": 4, "microbatches": 8, "schedule": "1f1b"}
    assert asked() == [whole] * 4 and asked(8) == [whole] * 8
    assert asked(3) == [None] * 3
    assert asked(pipeline_parallel_size=1) == [None] * 4
    assert asked(gradient_accumulation_steps=3) == [{**whole, "microbatches": 3}] * 4
    assert asked(pipeline_micro_batches=32) == [whole] * 4
    (first, *_) = plan(rank_did_not_finish, job(**JOB), fleet(4))
    assert "pipeline_parallel_size" in {claim.quantity for claim in first.because}


def test_a_rank_for_each_gpu_is_a_stage() -> None:
    seen = facts(
        *(fact(gpus, f"node{n}", Gpus(gpus=[Gpu(i) for i in range(2)])) for n in range(2)),
        *(fact(packages, f"node{n}", Packages("3.11", "python3", torch=Framework("2.9.0", "12.8"))) for n in range(2)),
    )
    requests = plan(rank_did_not_finish, job(**{**JOB, "backend": "nccl", "processes_per_node": 2}), fleet(2), seen)
    assert [request.params["pipeline"]["stages"] for request in requests] == [4] * 4


@pytest.mark.parametrize("check", [wrong_pipeline_result, pipeline_stage_slow])
def test_healthy_stages_pass_and_where_there_is_no_pipeline_nothing_is_judged(check: Any) -> None:
    assert statuses(judge(check, job(**JOB), fleet(4), ran())) == {"pass"}
    assert statuses(judge(check, job(**{**JOB, "pipeline_parallel_size": 1}), fleet(4), ran())) == {"not-applicable"}
    none = one(judge(check, job(**JOB), fleet(3), ran()), Status.NOT_APPLICABLE)
    assert none.message.endswith("3 ranks do not divide by 4 stages")
    assert statuses(judge(check, job(**JOB), fleet(4), ran(lambda number: None))) == {"not-applicable"}
    assert statuses(judge(check, job(**JOB), fleet(4), facts())) == {"unknown"}


def test_a_lost_microbatch_is_laid_to_the_way_between_two_nodes() -> None:
    seen = ran(lambda number: stage(number, faults=[LOST] if number == 1 else []))
    found = one(judge(wrong_pipeline_result, job(**JOB), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1") and found.severity in (None, Severity.ERROR)
    assert "stage 1 (rank 1 on node1), step 0, microbatch 2: received activations from rank 0 on node0" in found.message


def test_what_a_stage_made_wrong_is_laid_to_its_node() -> None:
    stale = replace(LOST, what="gradients", sender=-1, explanation="they were not stashed")
    seen = ran(lambda number: stage(number, faults=[stale] if number == 2 else []))
    found = one(judge(wrong_pipeline_result, job(**JOB), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "they were not stashed" in found.message


def slow(times: float, waited: float = 0.01) -> Callable[[int], PipelineReport]:
    stages = [0.003, 0.003, 0.003 * times, 0.003]
    return lambda number: stage(
        number, stage_s=stages, imbalance=max(stages) / (sum(stages) / 4), waited=waited if number == 2 else 0.01
    )


def test_a_slow_stage_is_named_with_its_node_and_the_numbers() -> None:
    found = one(judge(pipeline_stage_slow, job(**JOB), fleet(4), ran(slow(3.0))), Status.FAIL)
    assert found.nodes == ("node2",) and "stage 2 (rank 2 on node2) takes 9 ms" in found.message
    assert "imbalance 2.00" in found.message and "29% of a step, 27% by the formula" in found.message
    assert found.severity in (None, Severity.WARNING)


def test_a_busy_machine_is_inconclusive_and_ordinary_differences_pass() -> None:
    busy = one(judge(pipeline_stage_slow, job(**JOB), fleet(4), ran(slow(3.0, waited=0.5))), Status.UNKNOWN)
    assert "hosts busy" in busy.message and not busy.required
    assert statuses(judge(pipeline_stage_slow, job(**JOB), fleet(4), ran(slow(1.7)))) == {"pass"}
    on_gpus = judge(pipeline_stage_slow, job(**JOB), fleet(4), ran(slow(1.7), device="cuda:0 NVIDIA H100"))
    assert one(on_gpus, Status.FAIL).nodes == ("node2",)
