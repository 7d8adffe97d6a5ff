"""Cores that ranks may use."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Confidence, Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.host.processors import cores_differ, too_few_cores, usable_cores
from preflight_checks.probes.cgroups import Cgroups
from preflight_checks.probes.limits import Limits, limits
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

GOOD = Limits(65536, 65536, None, usable_cpus=list(range(32)), online_cpus=32, cgroup=Cgroups("v2"))
QUOTA = Cgroups("v2", cpu_quota_cores=2.0, cpu_quota_at="/sys/fs/cgroup/pod", throttled=0.93)


def node(name: str, **changes: object) -> FactRecord:
    return fact(limits, name, replace(GOOD, **changes))  # type: ignore[arg-type]


def test_the_smaller_of_quota_and_mask_counts() -> None:
    assert usable_cores(replace(GOOD, cgroup=QUOTA)) == 2.0
    assert usable_cores(replace(GOOD, usable_cpus=[3], cgroup=QUOTA)) == 1.0
    assert usable_cores(Limits(1, 1, None)) is None


def test_cores_are_requested_in_the_job_context() -> None:
    assert all(request.context for request in plan(too_few_cores, job(processes_per_node=8), fleet(2)))


def test_a_quota_is_reported_with_its_group_and_throttling() -> None:
    seen = facts(node("node0"), node("node1", cgroup=QUOTA))
    found = one(judge(too_few_cores, job(processes_per_node=8), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.confidence is Confidence.HIGH
    assert "/sys/fs/cgroup/pod is 2 of 32 cores" in found.message and "93%" in found.message
    assert "OMP_NUM_THREADS" in found.remedy
    told = facts(node("node0", cgroup=QUOTA, threads={"OMP_NUM_THREADS": "1"}))
    assert (
        "OMP_NUM_THREADS"
        not in one(judge(too_few_cores, job(processes_per_node=8), fleet(1), told), Status.FAIL).remedy
    )


def test_a_mask_is_reported_as_a_mask() -> None:
    seen = facts(node("node0", usable_cpus=[0]))
    found = one(judge(too_few_cores, job(processes_per_node=2), fleet(1), seen), Status.FAIL)
    assert "affinity mask holds 1 of 32 cores" in found.message


def test_gpus_and_loader_workers_need_cores_of_their_own() -> None:
    eight = facts(node("node0", usable_cpus=list(range(8))))
    assert statuses(judge(too_few_cores, job(processes_per_node=8), fleet(1), eight)) == {"pass"}
    gpus = job(processes_per_node=8, gpus_per_node=8)
    found = one(judge(too_few_cores, gpus, fleet(1), eight), Status.FAIL)
    assert found.confidence is None
    loaders = job(processes_per_node=8, dataloader_workers=8)
    held = one(judge(too_few_cores, loaders, fleet(1), eight), Status.FAIL)
    assert "64 loader workers" in held.message and held.severity is None
    whole = facts(node("node0", usable_cpus=list(range(8)), online_cpus=8))
    assert one(judge(too_few_cores, loaders, fleet(1), whole), Status.FAIL).severity is Severity.INFO


def test_ordinary_machines_pass() -> None:
    laptop = facts(node("node0", usable_cpus=[0, 1, 2, 3], online_cpus=4, cgroup=Cgroups("v2")))
    assert statuses(judge(too_few_cores, job(processes_per_node=2, dataloader_workers=2), fleet(1), laptop)) == {"pass"}
    one_gpu = job(processes_per_node=1, gpus_per_node=1)
    cloud = facts(node("node0", usable_cpus=[0, 1], online_cpus=2))
    assert statuses(judge(too_few_cores, one_gpu, fleet(1), cloud)) == {"pass"}


def test_unknown_without_facts() -> None:
    blind = facts(node("node0", usable_cpus=[], online_cpus=None))
    assert statuses(judge(too_few_cores, job(processes_per_node=2), fleet(1), blind)) == {"unknown"}
    late = facts(fact(limits, "node0", TIMEOUT), fact(limits, "node1", TIMEOUT))
    for check in (too_few_cores, cores_differ):
        assert statuses(judge(check, job(processes_per_node=2), fleet(2), late)) == {"unknown"}


def test_a_node_with_fewer_cores_is_named() -> None:
    seen = facts(*(node(f"node{i}") for i in range(3)), node("node3", usable_cpus=[7]))
    found = one(judge(cores_differ, job(), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node3",) and "have 32: node3 has 1" in found.message and found.severity is None
    two = facts(node("node0", cgroup=QUOTA), node("node1"))
    assert one(judge(cores_differ, job(), fleet(2), two), Status.FAIL).nodes == ("node0",)


def test_equal_nodes_and_those_with_a_few_cores_less_pass() -> None:
    seen = facts(node("node0"), node("node1", usable_cpus=list(range(30))))
    assert statuses(judge(cores_differ, job(), fleet(2), seen)) == {"pass"}
    assert statuses(judge(cores_differ, job(), fleet(1), facts(node("node0")))) == {"not-applicable"}


def test_a_single_fact_cannot_be_compared() -> None:
    seen = facts(node("node0"), fact(limits, "node1", TIMEOUT))
    assert statuses(judge(cores_differ, job(), fleet(2), seen)) == {"unknown"}


def test_severity_is_a_warning() -> None:
    assert too_few_cores.meta.severity is cores_differ.meta.severity is Severity.WARNING


def test_a_quota_that_cannot_be_seen_is_unknown() -> None:
    seen = facts(node("node0"), node("node1", cgroup=Cgroups(hidden=True)))
    found = one(judge(too_few_cores, job(processes_per_node=8), fleet(2), seen), Status.UNKNOWN)
    assert found.nodes == ("node1",) and "no cgroup file system is mounted" in found.message
