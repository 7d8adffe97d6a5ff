"""The backend of a smoke run: one for all ranks, as the job asks, and a finding where it cannot be used."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.findings import Severity, Status
from preflight.model.job import Job, OneOf, Unresolved
from preflight.model.recording import EventRecord, FactRecord, Facts, Fleet, SmokeOptions, Unavailable
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.packages import Framework, Packages, packages
from preflight_checks.smoke.completion import master_endpoint_unusable, rank_did_not_finish
from preflight_checks.smoke.plan import plan_of
from preflight_checks.smoke.results import wrong_collective_result
from preflight_checks.smoke.transport import backend_unusable
from reference_trainer.collective.rank import RankReport
from tests.checks.check_builders import claim, fact, facts, fleet, job, local_fleet, one, plan

EITHER = OneOf(("nccl", "gloo"))


def cards(node: str, count: int, cuda: str = "12.8") -> tuple[FactRecord, FactRecord]:
    return (
        fact(gpus, node, Gpus(gpus=[Gpu(index) for index in range(count)])),
        fact(packages, node, Packages("3.11", "/usr/bin/python3", torch=Framework("2.13.0", cuda)), context=True),
    )


def seen(*counts: int, **more: str) -> Facts:
    return facts(*(record for index, count in enumerate(counts) for record in cards(f"node{index}", count, **more)))


def asked(nodes: Fleet, of: Job, known: Facts) -> set[str]:
    return {request.params["backend"] for request in plan(rank_did_not_finish, of, nodes, known)}


def over(nodes: Fleet, backend: str) -> Fleet:
    return replace(nodes, smoke_options=SmokeOptions(backend=backend))


@pytest.mark.parametrize(
    ("claims", "counts", "expected"),
    [
        ({"backend": "gloo"}, (8, 8), "gloo"),
        ({"backend": "gloo", "gpus_per_node": 8}, (8, 8), "gloo"),
        ({"backend": "nccl"}, (8, 8), "nccl"),
        ({"backend": "nccl"}, (0, 0), "nccl"),
        ({"backend": "nccl"}, (8, 0), "nccl"),
        ({"gpus_per_node": 8}, (0, 0), "nccl"),
        ({"gpus_per_task": 1, "backend": EITHER}, (0, 0), "nccl"),
        ({"backend": EITHER}, (8, 8), "nccl"),
        ({"backend": EITHER}, (0, 0), "gloo"),
        ({"backend": "cpu:gloo,cuda:nccl"}, (0, 0), "gloo"),
        ({}, (8, 8), "nccl"),
        ({}, (8, 0), "gloo"),
        ({}, (0, 0), "gloo"),
        ({"backend": Unresolved("an argument")}, (8, 8), "nccl"),
        ({"backend": Unresolved("an argument"), "gpus_per_node": 8}, (0, 0), "gloo"),
    ],
)
def test_one_backend_for_all_ranks(claims: dict[str, Any], counts: tuple[int, ...], expected: str) -> None:
    assert asked(fleet(2), job(**claims), seen(*counts)) == {expected}


def test_ranks_agree_themselves_only_if_their_gpus_are_not_known() -> None:
    assert asked(fleet(2), job(), facts(*cards("node0", 8))) == {"auto"}
    assert asked(fleet(2), job(backend="nccl"), facts()) == {"nccl"}


def test_an_nccl_group_that_is_only_made_with_a_gpu_asks_for_nothing() -> None:
    for condition in ("torch.cuda.is_available()", "not args.cpu", 'device.type == "cuda"', "not (use_gpu)"):
        stated = replace(claim("backend", "nccl"), condition=condition)
        assert asked(fleet(2), job([stated]), seen(0, 0)) == {"gloo"}
    stated = replace(claim("backend", "nccl"), condition='int(os.environ["WORLD_SIZE"]) > 1')
    assert asked(fleet(2), job([stated]), seen(0, 0)) == {"nccl"}


def test_the_user_chooses_another_backend() -> None:
    assert asked(over(fleet(2), "gloo"), job(backend="nccl"), seen(0, 0)) == {"gloo"}
    assert asked(over(fleet(2), "nccl"), job(backend="gloo"), seen(1, 1)) == {"nccl"}


def test_nodes_that_share_a_machine_with_too_few_gpus_leave_nccl_untested() -> None:
    nodes = local_fleet(2)
    known = facts(*cards("local0", 1), *cards("local1", 1))
    assert asked(nodes, job(backend="nccl"), known) == {"gloo"}
    assert "has 1 usable GPUs for 2 ranks" in plan_of(job(backend="nccl"), nodes, known).backend.untested
    assert asked(nodes, job(backend="nccl"), facts(*cards("local0", 2), *cards("local1", 2))) == {"nccl"}


def test_only_a_backend_that_replaces_the_jobs_gets_an_interface() -> None:
    address = Interfaces([Interface("eth3", True, True, False, addresses=[Address("10.0.0.1", 24)])])
    known = facts(*cards("node0", 0), fact(interfaces, "node0", address))
    nodes = Fleet(tuple(replace(r, node=replace(r.node, address="10.0.0.1")) for r in fleet(1).records))
    (own,) = plan(rank_did_not_finish, job(backend="nccl"), nodes, known)
    assert "interface" not in own.params
    (replaced,) = plan(rank_did_not_finish, job(backend="nccl"), over(nodes, "gloo"), known)
    assert replaced.params["interface"] == "eth3"


# The verdicts


def recorded(of: Job, nodes: Fleet, known: Facts, *, without: dict[int, str] | None = None, **report: Any) -> Facts:
    """A run in which the ranks in `without` report why they cannot use NCCL, and then all end; else all complete."""
    records, events = [], []
    for number, request in enumerate(plan(rank_did_not_finish, of, nodes, known)):
        events.append(EventRecord(request.key, request.node, 1.0, "rank", {"event": "phase", "phase": "started"}))
        if without is None:
            made = RankReport(
                number,
                len(nodes.nodes),
                request.node,
                device="cpu",
                framework="torch 2.13.0",
                **{"backend": "gloo", **report},
            )
            records.append(FactRecord(request, asdict(made), started_s=0.0, finished_s=5.0))
            continue
        if number in without:
            problem = {"event": "problem", "problem": rank_events.NO_DEVICE, "error": without[number], "rank": number}
            events.append(EventRecord(request.key, request.node, 2.0, "rank", problem))
        kind = "missing" if number in without else "blocked"
        records.append(FactRecord(request, unavailable=Unavailable(kind, "no nccl"), started_s=0.0, finished_s=3.0))
    return Facts((*known.records_of(), *records), tuple(events))


def verdicts(of: Job, nodes: Fleet, known: Facts) -> list[Verdict]:
    return list(backend_unusable.judge(of, nodes, known))


def test_nodes_where_torch_finds_no_gpu_are_named() -> None:
    of, nodes = job(backend="nccl"), fleet(4)
    without = dict.fromkeys(range(4), "torch 2.13.0+cpu finds no GPU")
    run = recorded(of, nodes, seen(0, 0, 0, 0), without=without)
    found = one(verdicts(of, nodes, run), Status.FAIL)
    assert found.message == "the job asks for NCCL, and torch 2.13.0+cpu finds no GPU on node0, node1, node2, node3"
    assert found.severity in (None, Severity.ERROR)
    assert any("backend=nccl" in str(place) for place in found.locations)
    for check in (rank_did_not_finish, wrong_collective_result, master_endpoint_unusable):
        blocked = one(list(check.judge(of, nodes, run)), Status.UNKNOWN)
        assert "blocked by SMK008" in blocked.message and not blocked.required


def test_a_node_that_ended_before_its_rank_looked_is_named_by_its_facts() -> None:
    of, nodes = job(backend="nccl"), fleet(3)
    run = recorded(of, nodes, seen(1, 0, 0), without={1: "torch 2.13.0 finds no GPU"})
    found = one(verdicts(of, nodes, run), Status.FAIL)
    assert found.nodes == ("node1", "node2")
    hidden = recorded(of, nodes, seen(1, 1, 1), without={2: "torch 2.13.0 finds no GPU"})
    assert one(verdicts(of, nodes, hidden), Status.FAIL).nodes == ("node2",)


def test_a_run_over_the_jobs_backend_passes() -> None:
    for of in (job(backend="gloo"), job()):
        assert one(verdicts(of, fleet(2), recorded(of, fleet(2), seen(0, 0))), Status.PASS)
    of = job(gpus_per_node=1)
    run = recorded(of, fleet(2), seen(1, 1), backend="nccl")
    assert one(verdicts(of, fleet(2), run), Status.PASS).subject == "backend: NCCL (NCCL as the job asks)"


def test_a_run_over_the_users_backend_says_what_was_not_tested() -> None:
    of, nodes = job(backend="nccl"), over(fleet(2), "gloo")
    found = one(verdicts(of, nodes, recorded(of, nodes, seen(0, 0))), Status.FAIL)
    assert found.severity is Severity.INFO
    assert found.message == (
        "the smoke run used Gloo because of --smoke-backend; the job asks for NCCL, which was not tested"
    )


def test_what_the_run_could_not_test_is_not_a_pass() -> None:
    of = job(backend=EITHER)
    found = one(verdicts(of, fleet(2), recorded(of, fleet(2), seen(1, 0))), Status.UNKNOWN)
    assert found.required and "node1 has too few GPUs" in found.message
    of = job(backend="mpi")
    assert (
        "backend mpi was not tested"
        in one(verdicts(of, fleet(2), recorded(of, fleet(2), seen(0, 0))), Status.UNKNOWN).message
    )


def test_ranks_that_agreed_on_gloo_name_the_one_without_a_gpu() -> None:
    note = "gloo on all ranks, because 1 of 2 cannot use nccl: on rank 1 on node1 torch 2.13.0 finds no GPU"
    found = one(verdicts(job(), fleet(2), recorded(job(), fleet(2), facts(), backend_note=note)), Status.FAIL)
    assert found.severity is Severity.WARNING and note in found.message


def test_no_run_and_servers() -> None:
    assert one(verdicts(job(), fleet(2), facts()), Status.UNKNOWN).message == "blocked by SMK001: no rank ran"
    servers = job(ps_mode=True)
    assert one(verdicts(servers, fleet(2), facts()), Status.NOT_APPLICABLE)
