"""Mounts that hang, and login sessions that end processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight.model.requests import Request, probe_name
from preflight_checks.host.machines import network_mount_hangs, session_ends_processes
from preflight_checks.probes import liveness
from preflight_checks.probes.cgroups import Mount
from preflight_checks.probes.liveness import Liveness, is_network, network_mounts
from preflight_checks.probes.machine import Machine, machine
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, statuses


def liveness_at(node: str, *mounts: Liveness) -> FactRecord:
    values = [{name: getattr(mount, name) for name in Liveness.__dataclass_fields__} for mount in mounts]
    return FactRecord(Request(probe_name(network_mounts), node), values)


HOME = Liveness("/home", "nfs4", "nas:/home", 0.004)


def changed(**changes: Any) -> Liveness:
    return Liveness(**{**{name: getattr(HOME, name) for name in Liveness.__dataclass_fields__}, **changes})


def test_a_hanging_mount_is_named_with_its_server() -> None:
    seen = facts(liveness_at("node0", HOME), liveness_at("node1", changed(took_s=2.5, problem="timeout")))
    found = one(judge(network_mount_hangs, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "/home (nfs4 of nas:/home) does not answer" in found.message
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
    monkeypatch.setattr(liveness, "mounted", lambda: [here, gone, Mount("/", "ext4", "/dev/sda", "rw")])
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
