"""Limits that ranks inherit."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.host.memory import memlock_limited, open_files, shm_too_small
from preflight_checks.probes.limits import Limits, limits
from tests.checks.check_builders import fact, facts, fleet, job, judge, one, plan, statuses

MIB, GIB = 2**20, 2**30
GOOD = Limits(65536, 65536, None, 64 * GIB, 60 * GIB)


def node(name: str, **changes: object) -> FactRecord:
    return fact(limits, name, replace(GOOD, **changes))  # type: ignore[arg-type]


NO_CONTEXT = fact(limits, "node0", Unavailable("context", "no interpreter is known"))


def test_limits_are_requested_in_the_job_context() -> None:
    for check in (shm_too_small, open_files):
        assert all(request.context for request in plan(check, job(processes_per_node=8), fleet(2)))


def test_the_default_of_containers_is_too_small_for_several_ranks() -> None:
    seen = facts(node("node0"), node("node1", shm_total_bytes=64 * MIB, shm_free_bytes=64 * MIB))
    found = one(judge(shm_too_small, job(processes_per_node=8), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "64 MiB" in found.message and "--shm-size" in found.remedy


def test_loader_workers_share_memory_too() -> None:
    tiny = facts(node("node0", shm_total_bytes=64 * MIB, shm_free_bytes=64 * MIB))
    assert statuses(judge(shm_too_small, job(dataloader_workers=4), fleet(1), tiny)) == {"fail"}
    assert statuses(judge(shm_too_small, job(processes_per_node=1), fleet(1), tiny)) == {"not-applicable"}


def test_a_full_shared_memory_is_a_warning() -> None:
    full = facts(node("node0", shm_free_bytes=100 * MIB))
    found = one(judge(shm_too_small, job(processes_per_node=8), fleet(1), full), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_unreadable_shared_memory_is_unknown() -> None:
    blind = facts(node("node0", shm_total_bytes=None, shm_free_bytes=None, shm_problem="Permission denied"))
    assert statuses(judge(shm_too_small, job(processes_per_node=8), fleet(1), blind)) == {"unknown"}
    assert statuses(judge(shm_too_small, job(processes_per_node=8), fleet(1), facts(NO_CONTEXT))) == {"unknown"}
    assert statuses(judge(shm_too_small, job(processes_per_node=8), fleet(1), facts(node("node0")))) == {"pass"}


def test_locked_memory_matters_only_with_rdma_devices() -> None:
    nccl = job(backend="nccl")
    low = {"locked_memory_soft_bytes": 64 * 1024, "rdma_devices": ["mlx5_0"]}
    found = one(judge(memlock_limited, nccl, fleet(2), facts(node("node0", **low), node("node1"))), Status.FAIL)
    assert found.nodes == ("node0",) and "mlx5_0" in found.message
    plain = facts(node("node0", locked_memory_soft_bytes=64 * 1024))
    assert statuses(judge(memlock_limited, nccl, fleet(2), plain)) == {"not-applicable"}
    off = job(backend="nccl", env_NCCL_IB_DISABLE="1")
    assert plan(memlock_limited, off, fleet(2)) == []
    assert statuses(judge(memlock_limited, nccl, fleet(2), facts(NO_CONTEXT))) == {"unknown"}


def test_locked_memory_between_floor_and_budget_is_a_warning_and_unlimited_passes() -> None:
    some = facts(node("node0", locked_memory_soft_bytes=16 * GIB, rdma_devices=["mlx5_0"]))
    assert one(judge(memlock_limited, job(backend="nccl"), fleet(2), some), Status.FAIL).severity is Severity.WARNING
    unlimited = facts(node("node0", rdma_devices=["mlx5_0"]))
    assert statuses(judge(memlock_limited, job(backend="nccl"), fleet(2), unlimited)) == {"pass"}


def test_open_files_below_the_number_of_ranks_are_an_error() -> None:
    few = facts(node("node0", open_files_soft=24), node("node1"))
    found = one(judge(open_files, job(processes_per_node=8), fleet(2), few), Status.FAIL)
    assert found.nodes == ("node0",) and found.severity is None and "24 files" in found.message


def test_open_files_below_the_estimate_are_a_warning() -> None:
    usual = facts(node("node0", open_files_soft=1024))
    big = job(world_size=512)
    assert one(judge(open_files, big, fleet(2), usual), Status.FAIL).severity is Severity.WARNING
    assert statuses(judge(open_files, job(world_size=16), fleet(2), usual)) == {"pass"}
    assert statuses(judge(open_files, big, fleet(2), facts(NO_CONTEXT))) == {"unknown"}
