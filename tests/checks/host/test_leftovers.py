"""Leftovers of an earlier run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.host.leftovers import (
    STALE_LOCK_S,
    extension_lock_left_over,
    node_shared_with_others,
    processes_left_over,
    processes_stuck,
    shared_memory_left_over,
)
from preflight_checks.probes.leftovers import Leftovers, Lock, Process, Segment, leftovers, locks
from tests.checks.check_builders import TIMEOUT, claim, fact, facts, fleet, job, judge, one, plan, statuses

ALL = (processes_left_over, processes_stuck, shared_memory_left_over, node_shared_with_others)
GIB = 2**30


def node(name: str, *processes: Process, **more: Any) -> FactRecord:
    return fact(leftovers, name, Leftovers(list(processes), **more))


def process(what: str = "program", **more: Any) -> Process:
    values: dict[str, Any] = {"command": "python train.py", "user": "alice", "own": True, "age_s": 9000.0, "state": "S"}
    return Process(812, what, "train.py", **{**values, **more})


def test_ports_and_programs_of_the_job_are_requested() -> None:
    (asked, _) = plan(processes_left_over, job((claim("master_addr", "node0"),), master_port=29500), fleet(2))
    assert asked.params == {"programs": (), "ports": [29500]} and not asked.context


def test_a_clean_node_passes() -> None:
    for check in ALL:
        assert statuses(judge(check, job(), fleet(2), facts(node("node0"), node("node1")))) == {"pass"}
        blind = facts(fact(leftovers, "node0", TIMEOUT))
        assert statuses(judge(check, job(), fleet(1), blind)) == {"unknown"}


def test_a_leftover_trainer_is_named_with_the_command_to_end_it() -> None:
    seen = facts(node("node0"), node("node1", process(orphan=True, ports=[29500])))
    found = one(judge(processes_left_over, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",)
    assert "process 812 (2 h old, without a parent, listens on 29500) on node1" in found.message
    assert "ssh node1 kill 812" in found.remedy


def test_equal_leftovers_on_many_nodes_are_one_finding() -> None:
    seen = facts(*(node(f"node{i}", process("server")) for i in range(4)))
    found = one(judge(processes_left_over, job(), fleet(4), seen), Status.FAIL)
    assert len(found.nodes) == 4 and "4 processes" in found.message and "server of train.py" in found.message


def test_one_process_of_one_machine_is_one() -> None:
    """With `--on local` several nodes are this machine, and each of them sees the same processes."""
    nodes = fleet(2)
    one_machine = replace(
        nodes, records=tuple(replace(r, node=replace(r.node, address="127.0.0.1")) for r in nodes.records)
    )
    seen = facts(node("node0", process()), node("node1", process()))
    found = one(judge(processes_left_over, job(), one_machine, seen), Status.FAIL)
    assert "a process of an earlier run is" in found.message and found.nodes == ("node0",)
    assert "2 processes" in one(judge(processes_left_over, job(), nodes, seen), Status.FAIL).message


def test_workers_with_a_parent_and_processes_of_others_are_ignored() -> None:
    alone = facts(node("node0", process("worker"), process(own=False), process(state="Z")))
    assert statuses(judge(processes_left_over, job(), fleet(1), alone)) == {"pass"}
    orphan = facts(node("node0", process("worker", orphan=True)))
    assert statuses(judge(processes_left_over, job(), fleet(1), orphan)) == {"fail"}


def test_stuck_and_stopped_processes_need_different_remedies() -> None:
    seen = facts(node("node0", process(state="D")), node("node1", process(state="T")))
    stuck, stopped = (v for v in judge(processes_stuck, job(), fleet(2), seen) if v.status is Status.FAIL)
    assert stuck.nodes == ("node0",) and "reboot node0" in stuck.remedy
    assert stopped.nodes == ("node1",) and "kill -CONT 812" in stopped.remedy


def test_unused_shared_memory() -> None:
    def segment_fact(size: int, **more: Any) -> FactRecord:
        segment = Segment("torch_7_1_0", "torch", size, **{"age_s": 7200.0, "own": True, **more})
        return node("node0", segments=[segment], shm_total_bytes=64 * GIB)

    large = one(judge(shared_memory_left_over, job(), fleet(1), facts(segment_fact(20 * GIB))), Status.FAIL)
    assert large.severity is None and "20.0 GiB" in large.message and "/dev/shm/torch*" in large.remedy
    small = one(judge(shared_memory_left_over, job(), fleet(1), facts(segment_fact(2**21))), Status.FAIL)
    assert small.severity is Severity.INFO
    for harmless in (segment_fact(1000), segment_fact(20 * GIB, own=False), segment_fact(20 * GIB, age_s=3.0)):
        assert statuses(judge(shared_memory_left_over, job(), fleet(1), facts(harmless))) == {"pass"}


def held_lock(name: str, age_s: float) -> FactRecord:
    made = fact(locks, name, Lock("/home/a/.cache/torch_extensions/py311/fused_adam/lock", age_s), context=True)
    return FactRecord(made.request, [made.value])


def test_an_old_lock_without_a_compiler_is_stale() -> None:
    gpus = job(backend="nccl")
    seen = facts(held_lock("node0", 7200.0), held_lock("node1", 7200.0), node("node0"), node("node1"))
    found = one(judge(extension_lock_left_over, gpus, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "2 h old" in found.message and "rm " in found.remedy
    building = facts(held_lock("node0", 7200.0), node("node0"), node("node1", compiling=True))
    assert statuses(judge(extension_lock_left_over, gpus, fleet(2), building)) == {"unknown"}
    fresh = facts(held_lock("node0", STALE_LOCK_S - 1), node("node0"))
    assert statuses(judge(extension_lock_left_over, gpus, fleet(1), fresh)) == {"pass"}
    assert statuses(judge(extension_lock_left_over, job(backend="gloo"), fleet(1), facts())) == {"not-applicable"}
    assert statuses(judge(extension_lock_left_over, gpus, fleet(1), facts(fact(locks, "node0", TIMEOUT)))) == {
        "unknown"
    }


def test_other_users_are_information() -> None:
    found = one(
        judge(node_shared_with_others, job(), fleet(1), facts(node("node0", strangers={"bob": 2}))), Status.FAIL
    )
    assert "2 of bob" in found.message and node_shared_with_others.meta.severity is Severity.INFO


def test_a_job_without_launches_is_not_judged() -> None:
    idle = replace(job(), launches=())
    for check in (*ALL, extension_lock_left_over):
        assert plan(check, idle, fleet(2)) == []
        assert statuses(judge(check, idle, fleet(2), facts())) == {"not-applicable"}
