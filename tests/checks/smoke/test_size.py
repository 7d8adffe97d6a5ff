"""The number of ranks of a node in the smoke run, and whether they shard the model: from claims, GPUs and cores."""

from __future__ import annotations

from typing import Any

from preflight.model.recording import FactRecord, Fleet
from preflight_checks.probes.cgroups import Cgroups
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.smoke.completion import rank_did_not_finish
from preflight_checks.smoke.plan import plan_of
from tests.checks.check_builders import fact, facts, fleet, job, local_fleet, plan

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
