"""The smoke checks: the planned ranks, and the verdicts about a recorded run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.agent.child import plain
from preflight.model.findings import Severity, Status
from preflight.model.job import Job, Strength
from preflight.model.recording import (
    EventRecord,
    FactRecord,
    Facts,
    Fleet,
    InjectedFault,
    Node,
    NodeRecord,
    Recording,
    SmokeOptions,
    Unavailable,
)
from preflight.model.recording_io import load, save
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import HEADINGS, Check, Verdict
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.limits import Cgroups, Limits, limits
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.probes.ports import FreePorts, free_ports
from preflight_checks.smoke.completion import (
    injected_fault_not_named,
    master_endpoint_unusable,
    rank_did_not_finish,
)
from preflight_checks.smoke.plan import plan_of
from preflight_checks.smoke.ranks import framework_of, trains_with_paddle
from preflight_checks.smoke.results import (
    pipeline_stage_slow,
    ranks_disagree,
    wrong_collective_result,
    wrong_pipeline_result,
)
from preflight_checks.smoke.server_results import server_or_worker_did_not_finish
from preflight_checks.smoke.transport import backend_unusable
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.collective.steps import Drift
from reference_trainer.common.oracle import Mismatch
from reference_trainer.pipeline.stage import PipelineReport, StageFault
from tests.checks.check_builders import LAUNCH, claim, fact, facts, fleet, job, judge, local_fleet, one, plan, statuses

JOB = job(nodes=2, processes_per_node=8, master_addr="node0", master_port=29501)
ALL = (rank_did_not_finish, wrong_collective_result, ranks_disagree, master_endpoint_unusable)


def gpu_facts(counts: dict[str, int], cuda: str = "12.8") -> Facts:
    found: list[FactRecord] = []
    for node, count in counts.items():
        found.append(fact(gpus, node, Gpus(gpus=[Gpu(i) for i in range(count)])))
        found.append(fact(packages, node, Packages("3.11", "/usr/bin/python3", torch=Framework("2.9.0", cuda))))
    return Facts(tuple(found))


def params(requests: list[Request], name: str) -> list[Any]:
    return [request.params[name] for request in requests]


def test_one_rank_per_node_without_usable_gpus() -> None:
    for known in (Facts(), gpu_facts({"node0": 8, "node1": 8}, cuda="")):
        requests = plan(rank_did_not_finish, JOB, fleet(2), known)
        assert [(r.node, r.params["rank"], r.params["world_size"]) for r in requests] == [
            ("node0", 0, 2),
            ("node1", 1, 2),
        ]
        assert all(r.context and r.required and r.group == "smoke train" for r in requests)
        assert {claim.quantity for claim in requests[0].because} >= {"master_addr", "master_port"}


def test_the_jobs_ranks_start_if_every_node_has_the_gpus() -> None:
    requests = plan(rank_did_not_finish, JOB, fleet(2), gpu_facts({"node0": 8, "node1": 8}))
    assert params(requests, "rank") == list(range(16))
    assert params(requests, "local_rank") == [*range(8), *range(8)]
    fewer = plan(rank_did_not_finish, JOB, fleet(2), gpu_facts({"node0": 8, "node1": 4}))
    assert params(fewer, "world_size") == [8] * 8


def test_ranks_meet_at_the_jobs_endpoint() -> None:
    requests = plan(rank_did_not_finish, JOB, fleet(2))
    assert set(params(requests, "master_addr")) == {"node0"}
    assert set(params(requests, "master_port")) == {29501}


def test_without_an_endpoint_ranks_meet_on_the_first_node_at_the_default_port() -> None:
    requests = plan(rank_did_not_finish, job(nodes=2), fleet(2))
    assert {(r.params["master_addr"], r.params["master_port"]) for r in requests} == {("node0", 29500)}


def test_one_local_node_meets_on_loopback() -> None:
    (request,) = plan(rank_did_not_finish, job(nodes=1), local_fleet(1))
    assert request.params["master_addr"] == "127.0.0.1"


def test_nodes_on_one_machine_meet_on_loopback() -> None:
    local = Fleet(tuple(NodeRecord(Node(f"local{i}", i, "localhost")) for i in range(2)))
    requests = plan(rank_did_not_finish, JOB, local)
    assert {(r.params["master_addr"], r.params["interface"]) for r in requests} == {("127.0.0.1", "lo")}


def found_free(*ports: int, of: str = "train") -> Facts:
    return Facts((fact(free_ports, "local0", FreePorts(list(ports)), params={"count": 32, "job": of}),))


def test_nodes_on_one_machine_meet_at_a_free_port() -> None:
    known = found_free(20001, 20002)
    default = replace(claim("master_port", 29500, "torchrun --nnodes=2"), strength=Strength.DEFAULT)
    c10d = job(rendezvous_backend="c10d", rendezvous_endpoint="node0")
    for unnamed in (job(nodes=2), job([default], nodes=2, master_addr="node0"), c10d):
        for nodes in (local_fleet(1), local_fleet(2)):
            assert set(params(plan(rank_did_not_finish, unnamed, nodes, known), "master_port")) == {20001}
    for named, port in ((JOB, 29501), (job(rendezvous_backend="c10d", rendezvous_endpoint="node0:4711"), 4711)):
        assert set(params(plan(rank_did_not_finish, named, local_fleet(2), known), "master_port")) == {port}
    assert set(params(plan(rank_did_not_finish, job(nodes=2), fleet(2), known), "master_port")) == {29500}
    other = found_free(20001, of="another job of this run")
    assert set(params(plan(rank_did_not_finish, job(nodes=2), local_fleet(2), other), "master_port")) == {29500}


def test_a_node_without_an_agent_stays_in_the_world() -> None:
    requests = plan(rank_did_not_finish, JOB, fleet(3, node2="refused"))
    assert [r.node for r in requests] == ["node0", "node1", "node2"]


def test_parameter_server_jobs_are_not_applicable() -> None:
    served = job(ps_mode=True)
    assert plan(rank_did_not_finish, served, fleet(2)) == []
    for check in ALL:
        assert statuses(list(check.judge(served, fleet(2), Facts()))) == {"not-applicable"}


def report(rank: int, **changes: Any) -> RankReport:
    healthy = RankReport(
        rank,
        2,
        f"node{rank}",
        "gloo",
        "cpu",
        "2.9.0",
        operations=20,
        steps=5,
        losses=[2.3, 1.9, 1.4, 1.0, 0.6],
        digests=["aa", "aa"],
        difference_to_one_process=1e-8 if rank == 0 else None,
    )
    return replace(healthy, **changes)


def recorded(
    *answers: RankReport | Unavailable,
    events: tuple[tuple[int, float, str, dict[str, Any]], ...] = (),
    nodes: Fleet | None = None,
) -> Facts:
    """The run of these ranks, one a node, read from a saved recording; events are (rank, at_s, origin, data)."""
    requests = plan(rank_did_not_finish, JOB, nodes or fleet(len(answers)))
    records = tuple(
        FactRecord(request, unavailable=answer, finished_s=9.0)
        if isinstance(answer, Unavailable)
        else FactRecord(request, plain(answer), finished_s=9.0)
        for request, answer in zip(requests, answers, strict=True)
    )
    said = tuple(
        EventRecord(requests[rank].key, requests[rank].node, at_s, origin, data) for rank, at_s, origin, data in events
    )
    recording = Recording((JOB,), "2026-01-01T00:00:00+00:00", "0", facts=records, events=said)
    again = load(save(recording))
    return Facts(again.facts, again.events)


def judged(check: Check, facts: Facts) -> list[Verdict]:
    return list(check.judge(JOB, fleet(2), facts))


def test_a_healthy_run_passes_every_check() -> None:
    healthy = recorded(report(0), report(1))
    for check in ALL:
        assert statuses(judged(check, healthy)) == {"pass"}
    subject = one(judged(rank_did_not_finish, healthy), Status.PASS).subject
    assert "2 ranks on 2 nodes, gloo" in subject and "no usable GPU" in subject and "as written in the job" in subject


def test_a_killed_rank_is_named_with_node_phase_and_output() -> None:
    facts = recorded(
        Unavailable("cancelled", "it was cancelled"),
        Unavailable("crashed", "killed", "Out of memory", -9),
        events=(
            (0, 1.0, "child", {"event": rank_events.PHASE, "phase": rank_events.EXACT}),
            (1, 1.0, "child", {"event": rank_events.PHASE, "phase": rank_events.EXACT}),
        ),
    )
    verdict = one(judged(rank_did_not_finish, facts), Status.FAIL)
    assert verdict.nodes == ("node1",)
    assert "rank 1 on node1 was killed by SIGKILL" in verdict.message
    assert "rank 0 could not continue because of it" in verdict.message
    assert verdict.evidence[0].observed.startswith("dead after phase exact")
    assert any("Out of memory" in item.observed for item in verdict.evidence)
    assert verdict.locations


@pytest.mark.parametrize(
    ("code", "printed", "words"),
    [
        (-9, "", "out-of-memory killer"),
        (137, "", "out-of-memory killer"),
        (-11, "Segmentation fault", "last output, in the evidence"),
        (-6, "terminate called", "last output, in the evidence"),
        (0, "", "printed nothing"),
        (None, "", "the error that its process reported"),
        (1, "ImportError: libcudnn.so.9", "last output, in the evidence"),
    ],
)
def test_only_a_killed_process_points_to_a_lack_of_memory(code: int | None, printed: str, words: str) -> None:
    facts = recorded(Unavailable("cancelled", "it was cancelled"), Unavailable("crashed", "it ended", printed, code))
    remedy = one(judged(rank_did_not_finish, facts), Status.FAIL).remedy
    assert words in remedy and ("memory" in remedy) == (code in (-9, 137))


STACKS = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "preflight-bundle:/reference_trainer/common/progress.py", line 150 in _beat

Current thread 0x00007f00 (most recent call first):
  File "/srv/data.py", line 3 in read
  File "preflight-bundle:/reference_trainer/collective/rank.py", line 87 in rank
"""


def test_a_stuck_rank_shows_its_stack() -> None:
    group = {"event": rank_events.PHASE, "phase": rank_events.GROUP}
    beat = {"event": rank_events.BEAT, "progress": 0, "starved_s": 0.0}
    facts = recorded(
        Unavailable("cancelled", "x"),
        Unavailable("cancelled", "x"),
        events=(
            (0, 1.0, "child", group),
            (1, 1.0, "child", group),
            (0, 1.1, "child", {"event": rank_events.ENTERING, "what": "sum", "collective": 3, "waiting_for": []}),
            *((rank, half / 2, "child", beat) for half in range(3, 18) for rank in range(2)),
            (1, 8.6, "head", {"event": rank_events.DECIDED, "because": "x"}),
            (1, 8.7, "agent", {"stacks": STACKS}),
        ),
    )
    verdict = one(judged(rank_did_not_finish, facts), Status.FAIL)
    assert verdict.nodes == ("node1",)
    shown = [item.observed for item in verdict.evidence if item.observed.startswith("stack")]
    assert shown == ["stack: read (data.py:3) < rank (rank.py:87)"]


def test_a_run_that_could_not_start_is_unknown_and_required() -> None:
    missing = Unavailable("context", "no interpreter is known for the job")
    verdict = one(judged(rank_did_not_finish, recorded(missing, missing)), Status.UNKNOWN)
    assert verdict.required and "no interpreter is known" in verdict.message
    for check in ALL[1:]:
        verdict = one(judged(check, recorded(missing, missing)), Status.UNKNOWN)
        assert not verdict.required and "SMK001" in verdict.message
    assert one(judged(rank_did_not_finish, Facts()), Status.UNKNOWN).required


def test_an_interrupted_run_is_unknown() -> None:
    stopped = Unavailable("cancelled", "it was cancelled")
    assert one(judged(rank_did_not_finish, recorded(stopped, stopped)), Status.UNKNOWN).required


def mismatch(rank: int, contributions: dict[str, int]) -> Mismatch:
    return Mismatch(
        "all_reduce of 1000 elements",
        rank,
        1000,
        1000,
        0,
        "5.0",
        "4.0",
        "0x1",
        contributions,
        "it is missing",
    )


def test_a_lost_contribution_is_attributed_to_its_node() -> None:
    facts = recorded(*(report(rank, mismatches=[mismatch(rank, {"1": 0})]) for rank in range(2)))
    verdict = one(judged(wrong_collective_result, facts), Status.FAIL)
    assert verdict.nodes == ("node1",)
    assert "all_reduce of 1000 elements" in verdict.message and "expected exactly 5.0" in verdict.message


@pytest.mark.parametrize("kind", ["loss", "double", "flip"])
def test_an_injected_fault_in_results_is_named_by_its_finding(kind: str) -> None:
    nodes = replace(fleet(2), smoke_options=SmokeOptions(injected_fault=InjectedFault(kind, "rank", 1, 3)))
    wrong = [report(rank, mismatches=[mismatch(rank, {"1": 0})]) for rank in range(2)]
    began = (1, 1.0, "child", {"event": rank_events.FAULT_INJECTED})
    (found,) = injected_fault_not_named.judge(JOB, nodes, recorded(*wrong, events=(began,), nodes=nodes))
    assert found.status is Status.PASS and "as expected" not in found.subject
    assert "s later: all_reduce of 1000 elements: on rank 0" in found.subject


def test_an_undecodable_result_is_attributed_to_the_observer() -> None:
    facts = recorded(report(0, mismatches=[mismatch(0, {})]), report(1))
    assert one(judged(wrong_collective_result, facts), Status.FAIL).nodes == ("node0",)


def test_results_are_unknown_without_completed_ranks() -> None:
    gone = Unavailable("crashed", "x", "", -9)
    assert one(judged(wrong_collective_result, recorded(gone, gone)), Status.UNKNOWN).message.startswith(
        "blocked by SMK001"
    )


def test_different_or_unmoved_weights_and_a_flat_loss_are_faults() -> None:
    apart = recorded(report(0, digests=["aa", "aa", "bb"]), report(1, digests=["aa", "aa", "bb"]))
    assert "rank 2" in one(judged(ranks_disagree, apart), Status.FAIL).message
    own = recorded(report(0, digests=["aa"]), report(1, digests=["aa"]), report(2, digests=["bb"]))
    assert "rank 2 on node2 has" in one(judged(ranks_disagree, own), Status.FAIL).message
    unmoved = recorded(report(0), report(1, unmoved=["0.weight"]))
    verdict = one(judged(ranks_disagree, unmoved), Status.FAIL)
    assert (verdict.nodes, "0.weight" in verdict.message) == (("node1",), True)
    flat = recorded(report(0, losses=[2.3] * 5), report(1))
    assert one(judged(ranks_disagree, flat), Status.FAIL).nodes == ("node0",)


def test_weights_that_all_ranks_share_and_one_process_does_not_get_show_no_node() -> None:
    verdicts = judged(ranks_disagree, recorded(report(0, difference_to_one_process=float("nan")), report(1)))
    found = one(verdicts, Status.FAIL)
    assert found.nodes == () and "differ by nan" in found.message
    left = one(verdicts, Status.UNKNOWN)
    assert left.required and left.nodes == ("node0", "node1")
    one_apart = [report(0, difference_to_one_process=4e-5, digests=["aa"]), report(1, digests=["bb"])]
    found = one(judged(ranks_disagree, recorded(*one_apart, report(2, digests=["aa"]))), Status.FAIL)
    assert found.nodes == ("node1",), "that explains the difference"


@pytest.mark.parametrize("digests", [("aa", "bb"), ("aa", "bb", "cc"), ("aa", "aa", "bb", "bb")])
def test_no_node_differs_where_no_majority_agrees(digests: tuple[str, ...]) -> None:
    facts = recorded(*(report(rank, digests=[found]) for rank, found in enumerate(digests)))
    verdicts = judged(ranks_disagree, facts)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == () and found.severity is None and "no majority" in found.message
    assert "emove" not in found.remedy
    left = one(verdicts, Status.UNKNOWN)
    assert left.required and len(left.nodes) == len(digests)


@pytest.mark.parametrize(
    ("largest", "capabilities", "severity"),
    [
        (3e-8, ("AVX2", "AVX2", "DEFAULT"), Severity.WARNING),
        (3e-8, ("AVX2", "AVX2", "AVX2"), None),
        (3e-3, ("AVX2", "AVX2", "DEFAULT"), None),
        (math.nan, ("AVX2", "AVX2", "DEFAULT"), None),
    ],
)
def test_rounding_on_other_processors_is_a_warning(
    largest: float, capabilities: tuple[str, ...], severity: Severity | None
) -> None:
    facts = recorded(
        *(
            report(
                rank,
                digests=["bb" if rank == 2 else "aa"],
                cpu_capability=capability,
                drift=Drift(largest if rank == 2 else 0.0, 900 if rank == 2 else 0, 1000),
            )
            for rank, capability in enumerate(capabilities)
        )
    )
    found = one(judged(ranks_disagree, facts), Status.FAIL)
    assert found.severity is severity and found.nodes == ("node2",)
    assert ("DEFAULT on node2" in found.message) == (severity is Severity.WARNING)


def sent_wrong(rank: int, sender: int, operation: str = "all_to_all of 3000 bytes, timed") -> Mismatch:
    return Mismatch(operation, rank, 750, 1, sender * 250 + 7, "5.0", "4.0", "0x4", {}, "one bit differs")


def test_the_sender_of_wrong_parts_is_named() -> None:
    in_sum = "all_reduce of 3000 bytes, timed"
    facts = recorded(
        report(0, mismatches=[sent_wrong(0, 0, in_sum), sent_wrong(0, 2)]),
        report(1, mismatches=[sent_wrong(1, 0, in_sum), sent_wrong(1, 2)]),
        report(2, mismatches=[sent_wrong(2, 0, in_sum)]),
    )
    found = one(judged(wrong_collective_result, facts), Status.FAIL)
    assert found.nodes == ("node2",) and "sent by rank 2 to ranks 0, 1" in found.message
    pair = recorded(report(0, mismatches=[sent_wrong(0, 2)]), report(1), report(2))
    assert one(judged(wrong_collective_result, pair), Status.FAIL).nodes == ("node2", "node0")
    arriving = recorded(report(0, mismatches=[sent_wrong(0, 1), sent_wrong(0, 2)]), report(1), report(2))
    assert one(judged(wrong_collective_result, arriving), Status.FAIL).nodes == ("node0",)


def test_not_all_nodes_are_to_be_removed_if_all_see_a_wrong_sum() -> None:
    wrong = "all_reduce of 3000 bytes, timed"
    facts = recorded(*(report(rank, mismatches=[sent_wrong(rank, 0, wrong)]) for rank in range(3)))
    verdicts = judged(wrong_collective_result, facts)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == () and "Remove" not in found.remedy and "every node sees wrong results" in found.message
    assert one(verdicts, Status.UNKNOWN).nodes == ("node0", "node1", "node2")


def test_a_port_in_use_is_reported_once_for_the_endpoint() -> None:
    problem = {
        "event": rank_events.PROBLEM,
        "problem": "listen",
        "error": "cannot listen on port 29501: Address already in use",
    }
    facts = recorded(
        Unavailable("denied", "cannot listen on port 29501: Address already in use"),
        Unavailable("cancelled", "x"),
        events=((0, 0.5, "child", problem),),
    )
    verdict = one(judged(master_endpoint_unusable, facts), Status.FAIL)
    assert verdict.nodes == ("node0",)
    assert "29501: Address already in use" in verdict.message
    assert {location.path for location in verdict.locations} == {"train.sh"}
    assert one(judged(rank_did_not_finish, facts), Status.UNKNOWN).message.startswith("blocked by SMK004")


def test_docstrings_have_every_heading_in_order() -> None:
    for check in ALL:
        places = [check.meta.doc.find(f"{heading}:") for heading in HEADINGS]
        assert -1 not in places and places == sorted(places), check.meta.id


# The framework of a smoke run: Paddle's jobs run in Paddle where it is installed, and are told where it is not.


TORCH, PADDLE = Framework("2.13.0"), Framework("3.3.1")
SERVERS: dict[str, Any] = {"ps_mode": True, "ps_servers": 1, "ps_workers": 1}


def having(*nodes: tuple[Framework | None, Framework | None]) -> Facts:
    """Nodes with this torch and this paddle."""
    return facts(
        *(
            fact(packages, f"node{index}", Packages("3.11", "python3", {}, torch, paddle), context=True)
            for index, (torch, paddle) in enumerate(nodes)
        )
    )


def of_paddle(**claims: Any) -> Job:
    return job([claim("imported_framework", "paddle")], **claims)


def frameworks(of: Job, nodes: Fleet, known: Facts) -> set[str]:
    check = server_or_worker_did_not_finish if of.about("ps_mode") else rank_did_not_finish
    return {str(request.params.get("framework", "")) for request in plan(check, of, nodes, known)}


def test_a_job_of_paddle_runs_in_paddle_where_it_is() -> None:
    both = having((TORCH, PADDLE), (TORCH, PADDLE))
    for of in (of_paddle(), of_paddle(**SERVERS)):
        assert frameworks(of, fleet(2), both) == {"paddle"}
        assert framework_of(of, fleet(2), both).untested == ""
    assert frameworks(job(), fleet(2), both) == {""}
    # The node without it fails at the import, as in the job.
    assert frameworks(of_paddle(**SERVERS), fleet(2), having((TORCH, PADDLE), (TORCH, None))) == {"paddle"}


def test_what_makes_a_job_one_of_paddle() -> None:
    assert trains_with_paddle(job([claim("fleet_calls", ("init",))]))
    launched = replace(job(), launches=(replace(LAUNCH, launcher="fleetrun"),))
    assert trains_with_paddle(launched) and trains_with_paddle(of_paddle())
    assert not trains_with_paddle(job(**SERVERS)) and not trains_with_paddle(job(imported_framework="torch"))


def test_where_paddle_is_missing_the_run_tells_what_it_did_not_test() -> None:
    known = having((TORCH, None), (TORCH, None))
    assert frameworks(of_paddle(), fleet(2), known) == {""}
    requests = plan(rank_did_not_finish, of_paddle(), fleet(2), known)
    ran = [
        FactRecord(request, asdict(RankReport(rank, 2, request.node, "gloo", "cpu", "torch 2.13.0")))
        for rank, request in enumerate(requests)
    ]
    said = list(backend_unusable.judge(of_paddle(), fleet(2), Facts((*known.records_of(), *ran))))
    told = one(said, Status.UNKNOWN)
    assert told.message == (
        "the job trains with Paddle, which is not installed on node0, node1: the run used torch instead"
    )
    assert not told.required


def test_what_only_our_servers_have_runs_in_torch() -> None:
    both = having((TORCH, PADDLE), (TORCH, PADDLE))
    for options, word in ((SmokeOptions(mode="ssp"), "--mode ssp"), (SmokeOptions(backup=True), "--backup")):
        nodes = replace(fleet(2), smoke_options=options)
        assert frameworks(of_paddle(**SERVERS), nodes, both) == {"torch"}
        assert word in framework_of(of_paddle(**SERVERS), nodes, both).untested


def test_unknown_packages_leave_the_choice_to_each_process() -> None:
    assert frameworks(of_paddle(), fleet(2), having((TORCH, None))) == {""}
    assert framework_of(of_paddle(), fleet(2), having((TORCH, None))).untested == ""


# Ranks as stages of a pipeline: the condition, and the verdicts about their reports.


PIPELINE_JOB: dict[str, Any] = {
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
    requests = plan(rank_did_not_finish, job(**{**PIPELINE_JOB, **claims}), fleet(nodes))
    return [request.params.get("pipeline") for request in requests]


def test_ranks_become_stages_of_a_pipeline_that_divides_them() -> None:
    whole = {"stages": 4, "microbatches": 8, "schedule": "1f1b"}
    assert pipeline_requests() == [whole] * 4 and pipeline_requests(8) == [whole] * 8
    assert pipeline_requests(3) == [None] * 3
    assert pipeline_requests(pipeline_parallel_size=1) == [None] * 4
    assert pipeline_requests(gradient_accumulation_steps=3) == [{**whole, "microbatches": 3}] * 4
    assert pipeline_requests(pipeline_micro_batches=32) == [whole] * 4
    (first, *_) = plan(rank_did_not_finish, job(**PIPELINE_JOB), fleet(4))
    assert "pipeline_parallel_size" in {claim.quantity for claim in first.because}


def test_a_rank_for_each_gpu_is_a_stage() -> None:
    seen = facts(
        *(fact(gpus, f"node{n}", Gpus(gpus=[Gpu(i) for i in range(2)])) for n in range(2)),
        *(fact(packages, f"node{n}", Packages("3.11", "python3", torch=Framework("2.9.0", "12.8"))) for n in range(2)),
    )
    requests = plan(
        rank_did_not_finish, job(**{**PIPELINE_JOB, "backend": "nccl", "processes_per_node": 2}), fleet(2), seen
    )
    assert [request.params["pipeline"]["stages"] for request in requests] == [4] * 4


@pytest.mark.parametrize("check", [wrong_pipeline_result, pipeline_stage_slow])
def test_healthy_stages_pass_and_other_jobs_are_not_applicable(check: Any) -> None:
    assert statuses(judge(check, job(**PIPELINE_JOB), fleet(4), run_facts())) == {"pass"}
    assert statuses(judge(check, job(**{**PIPELINE_JOB, "pipeline_parallel_size": 1}), fleet(4), run_facts())) == {
        "not-applicable"
    }
    none = one(judge(check, job(**PIPELINE_JOB), fleet(3), run_facts()), Status.NOT_APPLICABLE)
    assert none.message.endswith("3 ranks cannot be divided into 4 equal stages")
    assert statuses(judge(check, job(**PIPELINE_JOB), fleet(4), run_facts(lambda number: None))) == {"not-applicable"}
    assert statuses(judge(check, job(**PIPELINE_JOB), fleet(4), facts())) == {"unknown"}


def test_a_lost_microbatch_is_attributed_to_the_link() -> None:
    seen = run_facts(lambda number: stage(number, faults=[LOST] if number == 1 else []))
    found = one(judge(wrong_pipeline_result, job(**PIPELINE_JOB), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1") and found.severity in (None, Severity.ERROR)
    assert "stage 1 (rank 1 on node1), step 0, microbatch 2: received activations from rank 0 on node0" in found.message


def test_a_wrong_result_is_attributed_to_its_node() -> None:
    stale = replace(LOST, what="gradients", sender=-1, explanation="they were not stashed")
    seen = run_facts(lambda number: stage(number, faults=[stale] if number == 2 else []))
    found = one(judge(wrong_pipeline_result, job(**PIPELINE_JOB), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "they were not stashed" in found.message


def slow(times: float, waited: float = 0.01) -> Callable[[int], PipelineReport]:
    stages = [0.003, 0.003, 0.003 * times, 0.003]
    return lambda number: stage(
        number, stage_s=stages, imbalance=max(stages) / (sum(stages) / 4), waited=waited if number == 2 else 0.01
    )


def test_a_slow_stage_is_named_with_its_node_and_the_numbers() -> None:
    found = one(judge(pipeline_stage_slow, job(**PIPELINE_JOB), fleet(4), run_facts(slow(3.0))), Status.FAIL)
    assert found.nodes == ("node2",) and "stage 2 (rank 2 on node2) takes 9 ms" in found.message
    assert "imbalance 2.00" in found.message and "29% of a step; the formula gives 27%" in found.message
    assert found.severity in (None, Severity.WARNING)


def test_a_busy_machine_is_inconclusive_and_ordinary_differences_pass() -> None:
    busy = one(
        judge(pipeline_stage_slow, job(**PIPELINE_JOB), fleet(4), run_facts(slow(3.0, waited=0.5))), Status.UNKNOWN
    )
    assert "hosts busy" in busy.message and not busy.required
    assert statuses(judge(pipeline_stage_slow, job(**PIPELINE_JOB), fleet(4), run_facts(slow(1.7)))) == {"pass"}
    on_gpus = judge(
        pipeline_stage_slow, job(**PIPELINE_JOB), fleet(4), run_facts(slow(1.7), device="cuda:0 NVIDIA H100")
    )
    assert one(on_gpus, Status.FAIL).nodes == ("node2",)


# The number of ranks of a node in the smoke run, and whether they shard the model: from claims, GPUs and cores.


GLOO: dict[str, Any] = {"backend": "gloo", "processes_per_node": 2, "master_addr": "node0", "master_port": 29500}


def cores(node: str, count: int, quota: float | None = None) -> FactRecord:
    value = Limits(1024, 1024, None, usable_cpus=list(range(count)), cgroup=Cgroups(cpu_quota_cores=quota))
    return fact(limits, node, value, context=True)


def sized(nodes: Fleet, *records: FactRecord, **claims: Any) -> tuple[int, str]:
    found = plan_of(job(**{**GLOO, **claims}), nodes, facts(*records))
    return found.ranks_per_node, found.ranks_reason


def test_a_gloo_job_gets_its_ranks_if_each_has_a_core() -> None:
    seen = facts(cores("node0", 2), cores("node1", 8))
    requests = plan(rank_did_not_finish, job(**GLOO), fleet(2), seen)
    assert [(r.node, r.params["rank"], r.params["local_rank"], r.params["world_size"]) for r in requests] == [
        ("node0", 0, 0, 4),
        ("node0", 1, 1, 4),
        ("node1", 2, 0, 4),
        ("node1", 3, 1, 4),
    ]
    assert sized(fleet(2), cores("node0", 2), cores("node1", 8))[1] == "2 ranks per node, as the job starts them"


def test_fewer_cores_than_ranks_are_reported() -> None:
    four = {"processes_per_node": 4}
    assert sized(fleet(2), cores("node0", 8), cores("node1", 2), **four) == (
        2,
        "2 ranks per node, one per usable core, instead of the job's 4",
    )
    number, why = sized(fleet(1), cores("node0", 8, quota=1.5), **four)
    assert number == 1 and why.startswith("one rank per node, one per usable core")


def test_without_known_cores_one_rank_starts() -> None:
    number, why = sized(fleet(2))
    assert number == 1 and "no node's usable cores are known" in why


def test_nodes_on_one_machine_share_its_cores() -> None:
    together = local_fleet(2)
    assert sized(together, *(cores(node.name, 2) for node in together.nodes))[0] == 1
    assert sized(together, *(cores(node.name, 4) for node in together.nodes))[0] == 2


def test_a_gpu_job_without_gpus_has_one_rank() -> None:
    number, why = sized(fleet(2), cores("node0", 8), cores("node1", 8), backend="nccl")
    assert number == 1 and "no usable GPU" in why


def test_sharding_claims_become_parameters() -> None:
    for claims in (
        {"uses_fsdp": True},
        {"zero_stage": 3},
        {"distributed_type": "FSDP"},
        {"sharding_library": "fsdp"},
        {"lightning_strategy": "fsdp"},
    ):
        requests = plan(rank_did_not_finish, job(**GLOO, **claims), fleet(2))
        assert all(request.params["sharding"] for request in requests)
        assert {claim.quantity for claim in requests[0].because} >= set(claims)
    for claims in ({}, {"zero_stage": 2}, {"sharding_library": "deepspeed"}, {"distributed_type": "MULTI_GPU"}):
        assert not any("sharding" in r.params for r in plan(rank_did_not_finish, job(**GLOO, **claims), fleet(2)))
