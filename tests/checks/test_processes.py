"""How many processes a job may start, and how large they may be."""

from __future__ import annotations

from dataclasses import replace

from preflight.outcome import Severity, Status
from preflight.recording import FactRecord
from preflight_checks.host.processes import process_size, processes_allowed
from preflight_checks.probes.cgroups import Cgroups
from preflight_checks.probes.limits import Limits, limits

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, statuses

GIB = 2**30
GOOD = Limits(65536, 65536, None, None, processes_soft=500000, threads_of_user=100, cgroup=Cgroups("v2"))
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


def test_root_is_held_to_control_groups_only() -> None:
    root = facts(node("node0", processes_soft=10, processes_exempt=True))
    assert statuses(judge(processes_allowed, JOB, fleet(1), root)) == {"pass"}
    group = Cgroups("v1", processes_limit=30, processes_used=25, processes_limit_at="/sys/fs/cgroup/pids/pod")
    held = facts(node("node0", processes_exempt=True, cgroup=group))
    found = one(judge(processes_allowed, JOB, fleet(1), held), Status.FAIL)
    assert "pids.max of /sys/fs/cgroup/pids/pod is 30" in found.message and found.severity is None


def test_the_tighter_of_both_limits_is_told() -> None:
    group = Cgroups("v2", processes_limit=4096, processes_used=10, processes_limit_at="/sys/fs/cgroup/pod")
    seen = facts(node("node0", processes_soft=150, cgroup=group))
    assert "the limit of processes is 150" in one(judge(processes_allowed, JOB, fleet(1), seen), Status.FAIL).message


def test_unlimited_and_ample_limits_pass_and_no_answer_is_unknown() -> None:
    assert statuses(judge(processes_allowed, JOB, fleet(1), facts(node("node0", processes_soft=None)))) == {"pass"}
    assert statuses(judge(processes_allowed, JOB, fleet(1), facts(node("node0")))) == {"pass"}
    late = facts(fact(limits, "node0", TIMEOUT))
    for check in (processes_allowed, process_size):
        assert statuses(judge(check, JOB, fleet(1), late)) == {"unknown"}


def test_an_address_space_limit_matters_with_gpus_only() -> None:
    seen = facts(node("node0", address_space_soft_bytes=32 * GIB), node("node1"))
    found = one(judge(process_size, job(gpus_per_node=8), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "32.0 GiB" in found.message and "ulimit -v" in found.remedy
    assert statuses(judge(process_size, job(backend="gloo"), fleet(2), seen)) == {"pass"}


def test_a_limit_of_file_size_always_matters() -> None:
    seen = facts(node("node0", file_size_soft_bytes=GIB))
    assert "ulimit -f" in one(judge(process_size, job(), fleet(1), seen), Status.FAIL).remedy
