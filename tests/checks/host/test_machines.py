"""Nodes as machines: systems, processors, memory and load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.host.machines import node_busy, slow_processor_setting, system_differs
from preflight_checks.host.memory import host_memory_differs, host_memory_short
from preflight_checks.probes.activity import Activity, Busy, activity
from preflight_checks.probes.cgroups import Cgroups
from preflight_checks.probes.limits import Limits, limits
from preflight_checks.probes.machine import Machine, Memory, NumaNode, machine
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses

GIB = 2**30
GOOD = Machine(
    "5.15.0-91-generic",
    "x86_64",
    "ubuntu 22.04",
    "glibc 2.35",
    processor="AMD EPYC 7763",
    online_cpus=128,
    present_cpus=128,
    numa=[NumaNode(0, 64, 512 * GIB), NumaNode(1, 64, 512 * GIB)],
    memory=Memory(1024 * GIB, 1000 * GIB, 8 * GIB, 8 * GIB),
    governors={"performance": 128},
    clock_source="tsc",
    features=["avx2", "avx512f", "sse2"],
)
IDLE = Activity(0.5, 128)


def machine_at(node: str, **changes: Any) -> FactRecord:
    return fact(machine, node, replace(GOOD, **changes))


def fleet_of(**changes: Any) -> list[FactRecord]:
    """Four nodes, the last with these changes."""
    return [*(machine_at(f"node{i}") for i in range(3)), machine_at("node3", **changes)]


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({"c_library": "glibc 2.31"}, None, "the same C library: node3: glibc 2.31"),
        ({"system": "debian 11"}, None, "distribution"),
        ({"architecture": "aarch64"}, None, "architecture"),
        ({"kernel": "5.15.0-60-generic"}, Severity.INFO, "kernel"),
        ({"processor": "Intel(R) Xeon(R)", "features": ["amx_tile"]}, Severity.INFO, "the same processor: node3"),
        (
            {"features": ["avx2", "sse2"]},
            Severity.INFO,
            "features of the processors: node3: all except avx512f; 3 nodes have",
        ),
    ],
)
def test_a_node_with_another_system_is_named(changes: dict[str, Any], severity: Severity | None, words: str) -> None:
    found = one(judge(system_differs, job(), fleet(4), facts(*fleet_of(**changes))), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is severity and words in found.message


def test_equal_systems_pass_and_one_machine_is_not_applicable() -> None:
    assert statuses(judge(system_differs, job(), fleet(4), facts(*fleet_of()))) == {"pass"}
    assert statuses(judge(system_differs, job(), local_fleet(4), facts())) == {"not-applicable"}
    assert statuses(judge(system_differs, job(), fleet(2), facts(fact(machine, "node0", TIMEOUT)))) == {"unknown"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"governors": {"powersave": 100, "performance": 28}}, "frequency governor: powersave"),
        ({"clock_source": "hpet"}, "clock source: hpet"),
        ({"online_cpus": 96}, "processors disabled: 32 of 128"),
    ],
)
def test_a_slower_setting_on_one_node(changes: dict[str, Any], words: str) -> None:
    found = one(judge(slow_processor_setting, job(), fleet(4), facts(*fleet_of(**changes))), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is None and words in found.message


def test_settings_common_to_all_nodes_are_not_warnings() -> None:
    saving = facts(*(machine_at(f"node{i}", governors={"powersave": 128}) for i in range(4)))
    assert statuses(judge(slow_processor_setting, job(), fleet(4), saving)) == {"pass"}
    slow = facts(*(machine_at(f"node{i}", clock_source="hpet") for i in range(2)))
    assert one(judge(slow_processor_setting, job(), fleet(2), slow), Status.FAIL).severity is Severity.INFO
    guests = facts(*(machine_at(f"node{i}", clock_source="kvm-clock", governors={}) for i in range(2)))
    assert statuses(judge(slow_processor_setting, job(), fleet(2), guests)) == {"pass"}


def test_less_memory_on_a_node_or_on_one_memory_node() -> None:
    less = facts(*fleet_of(memory=Memory(960 * GIB, 900 * GIB), numa=[]))
    found = one(judge(host_memory_differs, job(), fleet(4), less), Status.FAIL)
    assert found.nodes == ("node3",) and "node3 has 960.0 GiB" in found.message
    uneven = facts(*fleet_of(numa=[NumaNode(0, 64, 512 * GIB), NumaNode(1, 64, 448 * GIB)]))
    found = one(judge(host_memory_differs, job(), fleet(4), uneven), Status.FAIL)
    assert "node 1 has 448.0 GiB" in found.message
    all_uneven = [NumaNode(0, 64, 512 * GIB), NumaNode(1, 64, 100 * GIB), NumaNode(2, 0, 100 * GIB)]
    same = facts(*(machine_at(f"node{i}", numa=all_uneven) for i in range(4)))
    assert statuses(judge(host_memory_differs, job(), fleet(4), same)) == {"pass"}
    assert statuses(judge(host_memory_differs, job(), fleet(2), facts(machine_at("node0", memory=Memory())))) == {
        "unknown"
    }


THIRTEEN: dict[str, Any] = {"model_name": "llama-13b", "offload_optimizer_device": "cpu"}


def test_an_offloaded_optimizer_needs_the_memory_of_the_nodes_together() -> None:
    small = facts(*(machine_at(f"node{i}", memory=Memory(64 * GIB, 60 * GIB)) for i in range(2)))
    found = one(judge(host_memory_short, job(**THIRTEEN), fleet(2), small), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "takes 96.9 GiB" in found.message
    large = facts(*(machine_at(f"node{i}", memory=Memory(128 * GIB, 120 * GIB)) for i in range(2)))
    assert statuses(judge(host_memory_short, job(**THIRTEEN), fleet(2), large)) == {"pass"}


def limits_at(node: str, **group: Any) -> FactRecord:
    return fact(limits, node, Limits(1, 1, None, cgroup=Cgroups("v2", **group)))


def test_the_tighter_of_machine_and_cgroup_memory_counts() -> None:
    group = {"memory_limit_bytes": 32 * GIB, "memory_used_bytes": GIB, "memory_limit_at": "/sys/fs/cgroup/pod"}
    seen = facts(machine_at("node0"), machine_at("node1"), limits_at("node1", **group))
    found = one(judge(host_memory_short, job(**THIRTEEN), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "/sys/fs/cgroup/pod has 32.0 GiB" in found.message
    full = {**group, "memory_used_bytes": 32 * GIB - 1000}
    found = one(
        judge(host_memory_short, job(), fleet(1), facts(machine_at("node0"), limits_at("node0", **full))), Status.FAIL
    )
    assert "left" in found.message


def test_requested_and_free_memory() -> None:
    asked = job(memory_per_node_mib=512 * 1024)
    small = facts(machine_at("node0", memory=Memory(256 * GIB, 200 * GIB)))
    assert "requests 512.0 GiB" in one(judge(host_memory_short, asked, fleet(1), small), Status.FAIL).message
    nearly = facts(machine_at("node0", memory=Memory(500 * GIB, 400 * GIB)))
    assert statuses(judge(host_memory_short, asked, fleet(1), nearly)) == {"pass"}
    empty = facts(machine_at("node0", memory=Memory(256 * GIB, GIB // 2)))
    assert "512 MiB of 256.0 GiB left" in one(judge(host_memory_short, job(), fleet(1), empty), Status.FAIL).message
    assert statuses(judge(host_memory_short, job(), fleet(1), facts(machine_at("node0", memory=Memory())))) == {
        "unknown"
    }


def activity_at(node: str, **changes: Any) -> FactRecord:
    return fact(activity, node, replace(IDLE, **changes))


HEAVY = {"heavy": [Busy(77, "preprocess", 1000, 48.0)], "heavy_cores": 48.0}


def test_one_busy_node_is_a_warning_and_all_of_them_information() -> None:
    seen = facts(activity_at("node0"), activity_at("node1", **HEAVY), activity_at("node2"))
    found = one(judge(node_busy, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "preprocess (77, 48 cores)" in found.message
    busy = facts(*(activity_at(f"node{i}", **HEAVY) for i in range(2)))
    assert {v.severity for v in judge(node_busy, job(), fleet(2), busy)} == {Severity.INFO}


def test_load_stuck_processes_and_swap_are_information() -> None:
    loaded = facts(activity_at("node0", load=400.0), activity_at("node1", stuck=[Busy(5, "rsync", 0, state="D")]))
    verdicts = judge(node_busy, job(), fleet(2), loaded)
    assert {v.severity for v in verdicts} == {Severity.INFO} and len(verdicts) == 2
    swapping = facts(activity_at("node0"), machine_at("node0", memory=Memory(10 * GIB, 5 * GIB, 8 * GIB, 2 * GIB)))
    assert "node0 (6.0 GiB)" in one(judge(node_busy, job(), fleet(1), swapping), Status.FAIL).message


def test_light_load_passes_and_missing_facts_are_unknown() -> None:
    little = {"heavy": [Busy(9, "node_exporter", 0, 0.4)], "heavy_cores": 0.4}
    assert statuses(judge(node_busy, job(), fleet(1), facts(activity_at("node0", cores=1, **little)))) == {"pass"}
    assert statuses(judge(node_busy, job(), fleet(1), facts(fact(activity, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(node_busy, job(), local_fleet(2), facts(activity_at("local0", **HEAVY)))) == {
        "not-applicable"
    }
