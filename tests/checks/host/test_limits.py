"""Limits that ranks inherit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.host.machines import kernel_settings_differ
from preflight_checks.host.processors import (
    memlock_limited,
    open_files,
    process_size,
    processes_allowed,
    shm_too_small,
    time_and_priority,
)
from preflight_checks.probes import limits as probe
from preflight_checks.probes.limits import Cgroups, KernelSettings, Limits, kernel_settings, limits
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, plan, statuses

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


# Settings of the kernel: all are read, those that affect jobs are compared.


KERNEL_GOOD = {"net.core.rmem_max": "67108864", "vm.swappiness": "10", "kernel.threads-max": "1000"}


def nodes(**changes: str) -> list[FactRecord]:
    """Four nodes, the last with these changes; `__` is a dot."""
    other = {**KERNEL_GOOD, **{name.replace("__", "."): value for name, value in changes.items()}}
    return [fact(kernel_settings, f"node{i}", KernelSettings(other if i == 3 else KERNEL_GOOD)) for i in range(4)]


def test_a_node_with_another_setting_is_named() -> None:
    records = facts(*nodes(net__core__rmem_max="212992"))
    found = one(judge(kernel_settings_differ, job(), fleet(4), records), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity in (None, Severity.INFO)
    assert "net.core.rmem_max: node3: 212992; 3 nodes have 67108864" in found.message
    assert "sysctl -w net.core.rmem_max='67108864'" in found.remedy


def test_equal_settings_pass_and_size_dependent_ones_are_ignored() -> None:
    different = {"kernel__threads-max": "2000"}
    assert statuses(judge(kernel_settings_differ, job(), fleet(4), facts(*nodes(**different)))) == {"pass"}


def test_one_machine_is_not_applicable_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(kernel_settings_differ, job(), local_fleet(4), facts())) == {"not-applicable"}
    silent = facts(fact(kernel_settings, "node0", TIMEOUT))
    assert statuses(judge(kernel_settings_differ, job(), fleet(2), silent)) == {"unknown"}


def test_counters_keys_and_transient_interfaces_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "vm/swappiness": "10\n",
        "net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "net/ipv4/conf/eth0/rp_filter": "1\n",
        "net/ipv4/conf/veth12/rp_filter": "1\n",
        "kernel/random/uuid": "other every time\n",
        "kernel/hostname": "node1\n",
        "net/ipv4/tcp_fastopen_key": "0-0-0-0\n",
        "vm/stat_refresh": "",
        "net/ipv6/conf/eth0/stable_secret": "::1\n",
        "kernel/core_pattern": "|/usr/bin/upload --token abcdef %p\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(probe, "ROOT", str(tmp_path))
    assert kernel_settings({}).values == {
        "vm.swappiness": "10",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net.ipv4.conf.eth0.rp_filter": "1",
        "kernel.core_pattern": "|/usr/bin/upload --token **** %p",
    }
    monkeypatch.setattr(probe, "ROOT", str(tmp_path / "nothing"))
    with pytest.raises(ProbeUnavailable, match="no settings"):
        kernel_settings({})


def test_parameters_of_modules_are_read_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "a/parameters/x": "Y\n",
        "a/parameters/y": "default [performance]\n",
        "b/version": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert probe.read_modules(str(tmp_path)) == ({"a.x": "Y", "a.y": "default [performance]"}, 0)
    assert probe.read_modules(str(tmp_path / "nothing")) == ({}, 0)

    def settings(state: str) -> KernelSettings:
        return KernelSettings(KERNEL_GOOD, 0, {"intel_idle.max_cstate": state, "a.x": state})

    records = facts(*[fact(kernel_settings, f"node{i}", settings("9" if i == 3 else "1")) for i in range(4)])
    found = one(judge(kernel_settings_differ, job(), fleet(4), records), Status.FAIL)
    assert found.nodes == ("node3",)
    assert "intel_idle.max_cstate: node3: 9; 3 nodes have 1" in found.message
    assert "set `intel_idle.max_cstate=1` in /etc/modprobe.d" in found.remedy


def test_this_kernel_reports_the_same_twice() -> None:
    first, second = kernel_settings({}), kernel_settings({})
    assert first.values.keys() == second.values.keys() and len(first.values) > 100
    assert "kernel.pid_max" in first.values


# Limits on the number and size of processes.


PROCESS_GIB = 2**30
PROCESS_GOOD = Limits(65536, 65536, None, processes_soft=500000, threads_of_user=100, cgroup=Cgroups("v2"))
JOB = job(processes_per_node=8, dataloader_workers=7)


def process_node(name: str, **changes: object) -> FactRecord:
    return fact(limits, name, replace(PROCESS_GOOD, **changes))  # type: ignore[arg-type]


def test_fewer_than_the_ranks_and_workers_is_an_error() -> None:
    seen = facts(process_node("node0"), process_node("node1", processes_soft=128))
    found = one(judge(processes_allowed, JOB, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "28 more processes" in found.message and "ulimit -u" in str(found.evidence)


def test_fewer_than_their_threads_is_a_warning() -> None:
    seen = facts(process_node("node0", processes_soft=1024))
    assert one(judge(processes_allowed, JOB, fleet(1), seen), Status.FAIL).severity is Severity.WARNING


def test_root_is_limited_only_by_control_groups() -> None:
    root = facts(process_node("node0", processes_soft=10, processes_exempt=True))
    assert statuses(judge(processes_allowed, JOB, fleet(1), root)) == {"pass"}
    group = Cgroups("v1", processes_limit=30, processes_used=25, processes_limit_at="/sys/fs/cgroup/pids/pod")
    held = facts(process_node("node0", processes_exempt=True, cgroup=group))
    found = one(judge(processes_allowed, JOB, fleet(1), held), Status.FAIL)
    assert "pids.max of /sys/fs/cgroup/pids/pod is 30" in found.message and found.severity is None


def test_the_tighter_limit_is_reported() -> None:
    group = Cgroups("v2", processes_limit=4096, processes_used=10, processes_limit_at="/sys/fs/cgroup/pod")
    seen = facts(process_node("node0", processes_soft=150, cgroup=group))
    assert "the process limit is 150" in one(judge(processes_allowed, JOB, fleet(1), seen), Status.FAIL).message


def test_ample_limits_pass_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(processes_allowed, JOB, fleet(1), facts(process_node("node0", processes_soft=None)))) == {
        "pass"
    }
    assert statuses(judge(processes_allowed, JOB, fleet(1), facts(process_node("node0")))) == {"pass"}
    late = facts(fact(limits, "node0", TIMEOUT))
    for check in (processes_allowed, process_size):
        assert statuses(judge(check, JOB, fleet(1), late)) == {"unknown"}


def test_an_address_space_limit_matters_only_with_gpus() -> None:
    seen = facts(process_node("node0", address_space_soft_bytes=32 * PROCESS_GIB), process_node("node1"))
    found = one(judge(process_size, job(gpus_per_node=8), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "32.0 GiB" in found.message and "ulimit -v" in found.remedy
    assert statuses(judge(process_size, job(backend="gloo"), fleet(2), seen)) == {"pass"}


def test_a_file_size_limit_always_matters() -> None:
    seen = facts(process_node("node0", file_size_soft_bytes=PROCESS_GIB))
    assert "ulimit -f" in one(judge(process_size, job(), fleet(1), seen), Status.FAIL).remedy


def test_cpu_time_that_ends_a_rank_is_reported() -> None:
    seen = facts(process_node("node0"), process_node("node1", cpu_time_soft_s=3600))
    found = one(judge(time_and_priority, JOB, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "SIGXCPU after 3600 s" in found.message
    assert statuses(judge(time_and_priority, JOB, fleet(1), facts(process_node("node0", cpu_time_soft_s=864000)))) == {
        "pass"
    }


def test_ranks_of_low_priority_are_reported_where_others_have_a_higher_one() -> None:
    seen = facts(
        process_node("node0"),
        process_node("node1"),
        process_node("node2", niceness=10),
        process_node("node3", idle=True),
    )
    found = [item for item in judge(time_and_priority, JOB, fleet(4), seen) if item.status is Status.FAIL]
    assert [item.nodes for item in found] == [("node2",), ("node3",)]
    everywhere = facts(*(process_node(f"node{index}", niceness=5) for index in range(3)))
    assert statuses(judge(time_and_priority, JOB, fleet(3), everywhere)) == {"pass"}


def test_time_and_priority_without_facts_are_unknown() -> None:
    assert statuses(judge(time_and_priority, JOB, fleet(1), facts(fact(limits, "node0", TIMEOUT)))) == {"unknown"}
