"""Limits on the number and size of processes."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.host.processors import process_size, processes_allowed, time_and_priority
from preflight_checks.probes.cgroups import Cgroups
from preflight_checks.probes.limits import Limits, limits
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, statuses

GIB = 2**30
GOOD = Limits(65536, 65536, None, processes_soft=500000, threads_of_user=100, cgroup=Cgroups("v2"))
JOB = job(processes_per_node=8, dataloader_workers=7)


def node(name: str, **changes: object) -> FactRecord:
    return fact(limits, name, replace(GOOD, **changes))  # type: ignore[arg-type]


def test_fewer_than_the_ranks_and_workers_is_an_error() -> None:
    seen = facts(node("node0"), node("node1", processes_soft=128))
    found = one(judge(processes_allowed, JOB, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "28 more processes" in found.message and "ulimit -u" in str(found.evidence)


def test_fewer_than_their_threads_is_a_warning() -> None:
    seen = facts(node("node0", processes_soft=1024))
    assert one(judge(processes_allowed, JOB, fleet(1), seen), Status.FAIL).severity is Severity.WARNING


def test_root_is_limited_only_by_control_groups() -> None:
    root = facts(node("node0", processes_soft=10, processes_exempt=True))
    assert statuses(judge(processes_allowed, JOB, fleet(1), root)) == {"pass"}
    group = Cgroups("v1", processes_limit=30, processes_used=25, processes_limit_at="/sys/fs/cgroup/pids/pod")
    held = facts(node("node0", processes_exempt=True, cgroup=group))
    found = one(judge(processes_allowed, JOB, fleet(1), held), Status.FAIL)
    assert "pids.max of /sys/fs/cgroup/pids/pod is 30" in found.message and found.severity is None


def test_the_tighter_limit_is_reported() -> None:
    group = Cgroups("v2", processes_limit=4096, processes_used=10, processes_limit_at="/sys/fs/cgroup/pod")
    seen = facts(node("node0", processes_soft=150, cgroup=group))
    assert "the limit of processes is 150" in one(judge(processes_allowed, JOB, fleet(1), seen), Status.FAIL).message


def test_ample_limits_pass_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(processes_allowed, JOB, fleet(1), facts(node("node0", processes_soft=None)))) == {"pass"}
    assert statuses(judge(processes_allowed, JOB, fleet(1), facts(node("node0")))) == {"pass"}
    late = facts(fact(limits, "node0", TIMEOUT))
    for check in (processes_allowed, process_size):
        assert statuses(judge(check, JOB, fleet(1), late)) == {"unknown"}


def test_an_address_space_limit_matters_only_with_gpus() -> None:
    seen = facts(node("node0", address_space_soft_bytes=32 * GIB), node("node1"))
    found = one(judge(process_size, job(gpus_per_node=8), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "32.0 GiB" in found.message and "ulimit -v" in found.remedy
    assert statuses(judge(process_size, job(backend="gloo"), fleet(2), seen)) == {"pass"}


def test_a_file_size_limit_always_matters() -> None:
    seen = facts(node("node0", file_size_soft_bytes=GIB))
    assert "ulimit -f" in one(judge(process_size, job(), fleet(1), seen), Status.FAIL).remedy


def test_cpu_time_that_ends_a_rank_is_reported() -> None:
    seen = facts(node("node0"), node("node1", cpu_time_soft_s=3600))
    found = one(judge(time_and_priority, JOB, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "SIGXCPU after 3600 s" in found.message
    assert statuses(judge(time_and_priority, JOB, fleet(1), facts(node("node0", cpu_time_soft_s=864000)))) == {"pass"}


def test_ranks_of_low_priority_are_reported_where_others_have_a_higher_one() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", niceness=10), node("node3", idle=True))
    found = [item for item in judge(time_and_priority, JOB, fleet(4), seen) if item.status is Status.FAIL]
    assert [item.nodes for item in found] == [("node2",), ("node3",)]
    everywhere = facts(*(node(f"node{index}", niceness=5) for index in range(3)))
    assert statuses(judge(time_and_priority, JOB, fleet(3), everywhere)) == {"pass"}


def test_time_and_priority_without_facts_are_unknown() -> None:
    assert statuses(judge(time_and_priority, JOB, fleet(1), facts(fact(limits, "node0", TIMEOUT)))) == {"unknown"}
