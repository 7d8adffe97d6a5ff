"""Leftovers of an earlier run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight.model.requests import Request, probe_name
from preflight_checks.host.leftovers import (
    STALE_LOCK_S,
    extension_lock_left_over,
    node_shared_with_others,
    node_will_go_away,
    processes_left_over,
    processes_stuck,
    shared_memory_left_over,
)
from preflight_checks.host.machines import network_mount_hangs, session_ends_processes
from preflight_checks.probes import liveness
from preflight_checks.probes.leftovers import (
    CloudEvents,
    Leftovers,
    Lock,
    Process,
    Reservation,
    Segment,
    ShutdownSigns,
    SlurmNode,
    SlurmPlans,
    cloud_events,
    leftovers,
    locks,
    signs,
    slurm_plans,
)
from preflight_checks.probes.limits import Mount
from preflight_checks.probes.liveness import Liveness, is_network, network_mounts
from preflight_checks.probes.machine import Machine, machine
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


# Mounts that hang, and login sessions that end processes.


def liveness_at(node: str, *mounts: Liveness) -> FactRecord:
    values = [{name: getattr(mount, name) for name in Liveness.__dataclass_fields__} for mount in mounts]
    return FactRecord(Request(probe_name(network_mounts), node), values)


HOME = Liveness("/home", "nfs4", "nas:/home", 0.004)


def changed(**changes: Any) -> Liveness:
    return Liveness(**{**{name: getattr(HOME, name) for name in Liveness.__dataclass_fields__}, **changes})


def test_a_hanging_mount_is_named_with_its_server() -> None:
    seen = facts(liveness_at("node0", HOME), liveness_at("node1", changed(took_s=2.5, problem="timeout")))
    found = one(judge(network_mount_hangs, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "/home (nfs4 of nas:/home) does not respond" in found.message
    stale = facts(liveness_at("node0", changed(problem="Stale file handle")))
    assert "fails: Stale" in one(judge(network_mount_hangs, job(), fleet(1), stale), Status.FAIL).message


def test_a_slow_mount_on_one_node_is_information() -> None:
    seen = facts(liveness_at("node0", HOME), liveness_at("node1", changed(took_s=1.4)), liveness_at("node2", HOME))
    assert one(judge(network_mount_hangs, job(), fleet(3), seen), Status.FAIL).severity is Severity.INFO
    assert statuses(judge(network_mount_hangs, job(), fleet(1), facts(liveness_at("node0", changed(took_s=1.4))))) == {
        "pass"
    }


def test_nodes_without_network_mounts_pass_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(network_mount_hangs, job(), fleet(1), facts(liveness_at("node0")))) == {"pass"}
    late = facts(fact(network_mounts, "node0", TIMEOUT))
    assert statuses(judge(network_mount_hangs, job(), fleet(1), late)) == {"unknown"}


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs4", True), ("lustre", True), ("fuse.sshfs", True), ("fuse", True), ("ext4", False), ("autofs", False)],
)
def test_which_mounts_are_tested(kind: str, network: bool) -> None:
    assert is_network(Mount("/x", kind, "y", "rw")) is network


def test_mounts_of_this_machine_are_tested_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Mount(str(tmp_path), "nfs4", "nas:/a", "rw")
    gone = Mount(str(tmp_path / "gone"), "nfs4", "nas:/b", "rw")
    monkeypatch.setattr(liveness, "current_mounts", lambda: [here, gone, Mount("/", "ext4", "/dev/sda", "rw")])
    first, second = network_mounts({})
    assert first.problem == "" and "No such file" in second.problem


def machine_at(node: str, **logind: str) -> FactRecord:
    return fact(machine, node, Machine("6.1", "x86_64", logind=logind))


def test_sessions_that_end_processes() -> None:
    seen = facts(machine_at("node0", KillUserProcesses="yes"), machine_at("node1"))
    found = one(judge(session_ends_processes, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and session_ends_processes.meta.severity is Severity.INFO
    usual = facts(machine_at("node0", RemoveIPC="yes"), machine_at("node1", KillUserProcesses="no"))
    assert statuses(judge(session_ends_processes, job(), fleet(2), usual)) == {"pass"}
    assert statuses(judge(session_ends_processes, job(), fleet(1), facts(fact(machine, "node0", TIMEOUT)))) == {
        "unknown"
    }


# Nodes that will be removed or restarted.


def signs_at(node: str, **changes: Any) -> FactRecord:
    return fact(signs, node, ShutdownSigns(**changes))


def slurm(*nodes: SlurmNode, reservations: tuple[Reservation, ...] = ()) -> FactRecord:
    return fact(slurm_plans, "node0", SlurmPlans(list(nodes), list(reservations)), params={"nodes": ["node0", "node1"]})


def test_one_node_queries_slurm_and_clouds_need_consent() -> None:
    wanted = plan(node_will_go_away, job(), fleet(3))
    assert [r.params["nodes"] for r in wanted if "slurm" in r.probe] == [["node0", "node1", "node2"]]
    assert {r.consent for r in wanted if "cloud" in r.probe} == {"metadata"}


def test_only_a_shutdown_before_the_end_of_the_job_is_a_warning() -> None:
    seen = facts(signs_at("node0"), signs_at("node1", shutdown="reboot", shutdown_in_s=1800.0))
    found = one(judge(node_will_go_away, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "will restart in 30 min" in found.message
    assert statuses(judge(node_will_go_away, job(time_limit_s=600), fleet(2), seen)) == {"pass"}


def test_refused_logins_and_waiting_restarts() -> None:
    closed = facts(signs_at("node0", no_logins="going down"), signs_at("node1", no_logins=""))
    found = one(judge(node_will_go_away, job(), fleet(2), closed), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "going down" in found.message
    waiting = facts(signs_at("node0", restart_wanted=True))
    assert one(judge(node_will_go_away, job(), fleet(1), waiting), Status.FAIL).severity is Severity.INFO


def test_plans_of_slurm_for_the_jobs_nodes() -> None:
    drained = facts(signs_at("node0"), slurm(SlurmNode("node1", "IDLE+DRAIN", "bad dimm")))
    found = one(judge(node_will_go_away, job(), fleet(2), drained), Status.FAIL)
    assert found.nodes == ("node1",) and "bad dimm" in found.message
    soon = Reservation("pm", "node[1-3]", 3600.0)
    elsewhere = Reservation("pm2", "other[1-3]", 3600.0)
    late = Reservation("pm3", "node1", 200000.0)
    seen = facts(signs_at("node0"), slurm(reservations=(soon, elsewhere, late)))
    found = one(judge(node_will_go_away, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "pm of node1 begins in 60 min" in found.message


def test_a_node_without_slurm_or_cloud_passes() -> None:
    absent = Unavailable("missing", "there is no scontrol on the node")
    denied = Unavailable("denied", "not without --allow metadata")
    seen = facts(
        signs_at("node0"),
        fact(slurm_plans, "node0", absent, params={"nodes": ["node0"]}),
        fact(cloud_events, "node0", denied),
    )
    assert statuses(judge(node_will_go_away, job(), fleet(1), seen)) == {"pass"}


def test_cloud_events_and_missing_answers() -> None:
    seen = facts(signs_at("node0"), fact(cloud_events, "node0", CloudEvents(["system-reboot: soon"])))
    assert "system-reboot" in one(judge(node_will_go_away, job(), fleet(1), seen), Status.FAIL).message
    assert statuses(judge(node_will_go_away, job(), fleet(1), facts(fact(signs, "node0", TIMEOUT)))) == {"unknown"}
