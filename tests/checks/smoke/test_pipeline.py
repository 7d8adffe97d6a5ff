"""Ranks as stages of a pipeline: the condition, and the verdicts about their reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Facts
from preflight.model.requests import Request, probe_name
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.completion import rank_did_not_finish
from preflight_checks.smoke.results import pipeline_stage_slow, wrong_pipeline_result
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.pipeline.stage import PipelineReport, StageFault
from tests.checks.check_builders import fact, facts, fleet, job, judge, one, plan, statuses

JOB: dict[str, Any] = {
    "backend": "gloo",
    "master_addr": "node0",
    "master_port": 29500,
    "pipeline_parallel_size": 4,
}
LOST = StageFault(
    "received activations", 1, 2, "step 0", 0, 2000, 2000, 0, "0.125", "0.0", "no data of microbatch 2 arrived"
)


def stage(number: int, **changes: Any) -> PipelineReport:
    """The report of one healthy stage of four."""
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


def run_facts(report: Callable[[int], PipelineReport | None] = stage, device: str = "cpu") -> Facts:
    records = []
    for number in range(4):
        said = RankReport(number, 4, f"node{number}", "gloo", device, "torch 2.13.0", pipeline=report(number))
        request = Request(
            probe_name(rank), f"node{number}", {"rank": number, "world_size": 4}, context=True, group="smoke train"
        )
        records.append(FactRecord(request, asdict(said)))
    return facts(*records)


def pipeline_requests(nodes: int = 4, **claims: Any) -> list[Any]:
    requests = plan(rank_did_not_finish, job(**{**JOB, **claims}), fleet(nodes))
    return [request.params.get("pipeline") for request in requests]


def test_ranks_become_stages_of_a_pipeline_that_divides_them() -> None:
    whole = {"stages": 4, "microbatches": 8, "schedule": "1f1b"}
    assert pipeline_requests() == [whole] * 4 and pipeline_requests(8) == [whole] * 8
    assert pipeline_requests(3) == [None] * 3
    assert pipeline_requests(pipeline_parallel_size=1) == [None] * 4
    assert pipeline_requests(gradient_accumulation_steps=3) == [{**whole, "microbatches": 3}] * 4
    assert pipeline_requests(pipeline_micro_batches=32) == [whole] * 4
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
def test_healthy_stages_pass_and_other_jobs_are_not_applicable(check: Any) -> None:
    assert statuses(judge(check, job(**JOB), fleet(4), run_facts())) == {"pass"}
    assert statuses(judge(check, job(**{**JOB, "pipeline_parallel_size": 1}), fleet(4), run_facts())) == {
        "not-applicable"
    }
    none = one(judge(check, job(**JOB), fleet(3), run_facts()), Status.NOT_APPLICABLE)
    assert none.message.endswith("3 ranks cannot be divided into 4 equal stages")
    assert statuses(judge(check, job(**JOB), fleet(4), run_facts(lambda number: None))) == {"not-applicable"}
    assert statuses(judge(check, job(**JOB), fleet(4), facts())) == {"unknown"}


def test_a_lost_microbatch_is_attributed_to_the_link() -> None:
    seen = run_facts(lambda number: stage(number, faults=[LOST] if number == 1 else []))
    found = one(judge(wrong_pipeline_result, job(**JOB), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1") and found.severity in (None, Severity.ERROR)
    assert "stage 1 (rank 1 on node1), step 0, microbatch 2: received activations from rank 0 on node0" in found.message


def test_a_wrong_result_is_attributed_to_its_node() -> None:
    stale = replace(LOST, what="gradients", sender=-1, explanation="they were not stashed")
    seen = run_facts(lambda number: stage(number, faults=[stale] if number == 2 else []))
    found = one(judge(wrong_pipeline_result, job(**JOB), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "they were not stashed" in found.message


def slow(times: float, waited: float = 0.01) -> Callable[[int], PipelineReport]:
    stages = [0.003, 0.003, 0.003 * times, 0.003]
    return lambda number: stage(
        number, stage_s=stages, imbalance=max(stages) / (sum(stages) / 4), waited=waited if number == 2 else 0.01
    )


def test_a_slow_stage_is_named_with_its_node_and_the_numbers() -> None:
    found = one(judge(pipeline_stage_slow, job(**JOB), fleet(4), run_facts(slow(3.0))), Status.FAIL)
    assert found.nodes == ("node2",) and "stage 2 (rank 2 on node2) takes 9 ms" in found.message
    assert "imbalance 2.00" in found.message and "29% of a step, 27% by the formula" in found.message
    assert found.severity in (None, Severity.WARNING)


def test_a_busy_machine_is_inconclusive_and_ordinary_differences_pass() -> None:
    busy = one(judge(pipeline_stage_slow, job(**JOB), fleet(4), run_facts(slow(3.0, waited=0.5))), Status.UNKNOWN)
    assert "hosts busy" in busy.message and not busy.required
    assert statuses(judge(pipeline_stage_slow, job(**JOB), fleet(4), run_facts(slow(1.7)))) == {"pass"}
    on_gpus = judge(pipeline_stage_slow, job(**JOB), fleet(4), run_facts(slow(1.7), device="cuda:0 NVIDIA H100"))
    assert one(on_gpus, Status.FAIL).nodes == ("node2",)
