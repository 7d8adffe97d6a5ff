"""Nodes as machines: systems, processors, memory and load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Confidence, Severity, Status
from preflight.model.job import Job, OneOf, Unresolved
from preflight.model.recording import (
    HEAD_PAUSED,
    NUMBERS,
    PROPERTIES,
    VERSIONS,
    FactRecord,
    Fleet,
    NodeRecord,
    Origin,
    Unavailable,
    job_of_nodes,
    parse_requirement,
)
from preflight_checks.host.machines import (
    clock_not_kept,
    clock_spread,
    node_busy,
    slow_processor_setting,
    system_differs,
)
from preflight_checks.host.processors import (
    cores_differ,
    host_memory_differs,
    host_memory_short,
    too_few_cores,
    usable_cores,
)
from preflight_checks.host.requirements import is_met, node_differs, properties
from preflight_checks.nodes import named_node_absent, no_nodes, node_count_differs, node_not_examined, node_unreachable
from preflight_checks.plans import table
from preflight_checks.probes.devices import Activity, Busy, activity
from preflight_checks.probes.gpus import Gpus, gpus
from preflight_checks.probes.limits import Cgroups, Limits, limits
from preflight_checks.probes.machine import Clock, Machine, Memory, NumaNode, clock, machine
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from tests.checks.check_builders import (
    TIMEOUT,
    fact,
    facts,
    fleet,
    healthy,
    job,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)

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
            "processor features: node3: all except avx512f; 3 nodes have",
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
    assert found.nodes == ("node0", "node1") and "needs 96.9 GiB" in found.message
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


# What the user requires of every node: values, and the properties of a golden node.


RDMA = RdmaDevices([RdmaDevice("mlx5_0", ports=[RdmaPort(1, "ACTIVE", rate_gbps=400.0), RdmaPort(2, "DOWN")])])


def node_facts(node: str, **changes: Any) -> list[FactRecord]:
    """A node with two GPUs, 1 TiB of memory and one active RDMA port."""
    cards = Gpus("550.54.15", "550.54.15", "12.4", [healthy(0), healthy(1)])
    return [
        fact(machine, node, replace(GOOD, **changes)),
        fact(gpus, node, cards),
        fact(rdma, node, RDMA),
    ]


def nodes_job(*requirements: str, golden: str = "") -> Job:
    return job_of_nodes([parse_requirement(text) for text in requirements], golden)


FOUR = [record for index in range(3) for record in node_facts(f"node{index}")]


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("gpus=8", "8", True),
        ("gpus=8", "7", False),
        ("gpus>=4", "8", True),
        ("driver=550", "550.54.15", True),
        ("driver=55", "550.54.15", False),
        ("driver==550", "550.54.15", False),
        ("driver>=535", "550.54.15", True),
        ("driver>=560", "550.54.15", False),
        ("driver=550", "none", False),
        ("kernel=5.15.0", "5.15.0-91-generic", True),
        ("os=Ubuntu", "ubuntu 22.04", True),
        ("os=debian", "ubuntu 22.04", False),
        ("gpu=H100", "NVIDIA H100 80GB HBM3", True),
        ("gpu=H100", "NVIDIA H100 80GB HBM3, NVIDIA A100-SXM4-80GB", False),
        ("memory=1024", "1007.3", True),
        ("memory=1024", "960", False),
        ("memory=1024", "2048", False),
        ("memory>=1024", "2048", True),
        ("rdma-rate=400", "100", False),
    ],
)
def test_values_are_compared_by_their_kind(text: str, value: str, met: bool) -> None:
    assert is_met(parse_requirement(text), value) is met


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus", "expected NAME=VALUE"),
        ("gpu-s=8", "unknown property 'gpu-s'; did you mean 'gpus'?"),
        ("gpus=eight", "gpus is a number"),
        ("os>=22.04", "os is a text, which has no order"),
        ("driver=new", "driver is a version"),
        ("gpus=", "expected NAME=VALUE"),
    ],
)
def test_a_malformed_requirement_is_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_requirement(text)


def test_every_property_can_be_read_and_shown() -> None:
    record = replace(fleet(1).records[0], python="3.11.2")
    assert set(properties(record, facts(*node_facts("node0")))) == set(PROPERTIES) == set(table("property_commands"))
    assert set(NUMBERS) | set(VERSIONS) <= set(PROPERTIES)


def test_a_node_with_another_value_is_named_with_both() -> None:
    found = [*FOUR, *node_facts("node3", online_cpus=96)]
    verdict = one(judge(node_differs, nodes_job("cpus=128", "gpus=2"), fleet(4), facts(*found)), Status.FAIL)
    assert verdict.nodes == ("node3",)
    assert verdict.message == "cpus of node3 is 96, but `--expect cpus=128` requires 128"
    assert verdict.locations[0].snippet == "preflight nodes --expect cpus=128 --expect gpus=2"


def test_a_node_without_a_driver_does_not_meet_a_requirement_about_gpus() -> None:
    seen = facts(fact(gpus, "node0", Gpus(problem="no-driver")), *node_facts("node0")[::2])
    verdicts = judge(node_differs, nodes_job("driver>=535", "gpus=2"), fleet(1), seen)
    assert [verdict.message.partition(",")[0] for verdict in verdicts] == [
        "driver of node0 is none",
        "gpus of node0 is 0",
    ]


def test_a_driver_that_is_loaded_without_its_library_is_not_a_node_without_gpus() -> None:
    seen = facts(fact(gpus, "node0", Gpus(problem="no-library", device_files=8)), *node_facts("node0")[::2])
    assert one(judge(node_differs, nodes_job("gpus=8"), fleet(1), seen), Status.UNKNOWN).required


def test_a_model_that_is_not_known_is_never_met() -> None:
    cards = Gpus("550.54.15", "550.54.15", "12.4", [healthy(0), replace(healthy(1), name="")])
    seen = facts(fact(gpus, "node0", cards), *node_facts("node0")[::2])
    assert one(judge(node_differs, nodes_job("gpu=NVIDIA"), fleet(1), seen), Status.UNKNOWN).required


def test_a_golden_node_whose_gpus_are_not_known_leaves_the_check_undecided() -> None:
    found = [
        fact(machine, "node0", GOOD),
        fact(gpus, "node0", TIMEOUT),
        fact(rdma, "node0", RDMA),
        *node_facts("node1"),
    ]
    verdict = one(judge(node_differs, nodes_job(golden="node0"), fleet(2), facts(*found)), Status.UNKNOWN)
    assert verdict.required and "gpus of the golden node node0 is unknown" in verdict.message


def test_what_is_not_known_is_never_met() -> None:
    seen = facts(fact(machine, "node0", GOOD), fact(gpus, "node0", TIMEOUT))
    verdict = one(judge(node_differs, nodes_job("gpus=2"), fleet(1), seen), Status.UNKNOWN)
    assert verdict.required and verdict.nodes == ("node0",)


def test_every_node_must_have_the_properties_of_the_golden_one() -> None:
    found = [*FOUR, *node_facts("node3", kernel="6.1.0-18-amd64")]
    verdict = one(judge(node_differs, nodes_job(golden="node1"), fleet(4), facts(*found)), Status.FAIL)
    assert "kernel of node3 is 6.1.0-18-amd64, but `--golden node1` requires 5.15.0-91-generic" in verdict.message


def test_a_requirement_replaces_the_property_of_the_golden_node() -> None:
    found = [*FOUR, *node_facts("node3", kernel="6.1.0-18-amd64")]
    verdicts = judge(node_differs, nodes_job("kernel>=5.10", golden="node1"), fleet(4), facts(*found))
    assert statuses(verdicts) == {"pass"}


def test_a_golden_node_that_was_not_examined_leaves_the_check_undecided() -> None:
    verdict = one(judge(node_differs, nodes_job(golden="other"), fleet(4), facts(*FOUR)), Status.UNKNOWN)
    assert verdict.required and "was not examined" in verdict.message


def test_a_job_of_files_requires_nothing_of_the_nodes_themselves() -> None:
    assert statuses(judge(node_differs, job(), fleet(4), facts())) == {"not-applicable"}
    assert plan(node_differs, job(), fleet(4)) == []
    assert len(plan(node_differs, nodes_job("cpus=2"), fleet(4))) == 12


def test_an_unreached_node_is_left_to_its_own_check() -> None:
    silent: NodeRecord = fleet(2, node1="no route").records[1]
    assert silent.problem
    verdicts = judge(node_differs, nodes_job("cpus=128"), fleet(2, node1="no route"), facts(*node_facts("node0")))
    assert statuses(verdicts) == {"pass"}


# Cores that ranks may use.


PROCESSOR_GOOD = Limits(65536, 65536, None, usable_cpus=list(range(32)), online_cpus=32, cgroup=Cgroups("v2"))
QUOTA = Cgroups("v2", cpu_quota_cores=2.0, cpu_quota_at="/sys/fs/cgroup/pod", throttled=0.93)


def node(name: str, **changes: object) -> FactRecord:
    return fact(limits, name, replace(PROCESSOR_GOOD, **changes))  # type: ignore[arg-type]


def test_the_smaller_of_quota_and_mask_counts() -> None:
    assert usable_cores(replace(PROCESSOR_GOOD, cgroup=QUOTA)) == 2.0
    assert usable_cores(replace(PROCESSOR_GOOD, usable_cpus=[3], cgroup=QUOTA)) == 1.0
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
    assert "affinity mask contains 1 of 32 cores" in found.message


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
    assert found.nodes == ("node3",) and "the other nodes: node3 has 1" in found.message and found.severity is None
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


# Nodes that do not answer, and clocks that disagree.


def with_clocks(*offsets: float | None, round_trip_s: float = 0.01) -> Fleet:
    records = fleet(len(offsets)).records
    return Fleet(
        tuple(replace(r, clock_offset_s=o, round_trip_s=round_trip_s) for r, o in zip(records, offsets, strict=True))
    )


def test_a_silent_node_is_named_with_the_error_of_ssh() -> None:
    verdicts = judge(node_unreachable, job(), fleet(4, node3="Connection refused"), facts())
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node3",)
    assert "Connection refused" in found.message and "node3" in found.remedy
    assert sum(v.status is Status.PASS for v in verdicts) == 3


def test_a_node_lost_to_a_pause_of_the_head_is_not_blamed() -> None:
    broken = fleet(4, node3="preflight itself did not run for 12 s")
    records = (replace(r, problem_kind=HEAD_PAUSED) if r.problem else r for r in broken.records)
    verdicts = judge(node_unreachable, job(), replace(broken, records=tuple(records)), facts())
    assert not [v for v in verdicts if v.status is Status.FAIL]
    open_one = one(verdicts, Status.UNKNOWN)
    assert open_one.required and open_one.nodes == ("node3",) and "12 s" in open_one.message


@pytest.mark.parametrize(("given", "says"), [(3, "3 were given"), (5, "not part of the job"), (1, "1 was given")])
def test_fewer_or_more_nodes_than_the_job_has(given: int, says: str) -> None:
    found = one(judge(node_count_differs, job(nodes=4), fleet(given), facts()), Status.FAIL)
    assert says in found.message and "nodes=4" in found.message


def test_nodes_of_the_job_that_were_not_given_are_unknown() -> None:
    left = one(judge(node_count_differs, job(nodes=4), fleet(3), facts()), Status.UNKNOWN)
    assert left.required and left.subject == "1 of the job's 4 nodes"
    for seen in (fleet(5), local_fleet(2)):
        assert statuses(judge(node_count_differs, job(nodes=4), seen, facts())) == {"fail"}


def test_the_right_number_of_nodes_passes() -> None:
    assert statuses(judge(node_count_differs, job(nodes=4), fleet(4), facts())) == {"pass"}


@pytest.mark.parametrize("nodes", [1, "2:4", Unresolved("$N is set by the caller"), OneOf((2, 4))])
def test_an_uncertain_number_of_nodes_is_not_judged(nodes: object) -> None:
    judged = judge(node_count_differs, job(nodes=nodes), fleet(3), facts())
    assert statuses(judged) == {"not-applicable"}


def in_allocation(count: int) -> Fleet:
    return replace(fleet(count), executor="slurm", origin=Origin("executor", "Slurm job 71", "SLURM_JOB_ID=71 is set"))


def test_too_small_an_allocation_names_the_missing_ranks() -> None:
    found = one(judge(node_count_differs, job(nodes=4), in_allocation(2), facts()), Status.FAIL)
    assert found.severity is None
    assert "Slurm job 71 has only 2, node0, node1: node ranks 2 to 3 are missing" in found.message
    found = one(judge(node_count_differs, job(nodes=4), in_allocation(5), facts()), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_without_nodes_the_reason_is_a_required_unknown() -> None:
    nobody = Fleet((), "slurm", Origin("executor", "slurm", "--on slurm", "no node is free", "missing"))
    found = one(judge(no_nodes, job(nodes=4), nobody, facts()), Status.UNKNOWN)
    assert found.required and found.message == "no node is free"
    assert statuses(judge(node_count_differs, job(nodes=4), nobody, facts())) == {"unknown"}
    assert statuses(judge(no_nodes, job(), in_allocation(2), facts())) == {"pass"}
    assert statuses(judge(no_nodes, job(), fleet(2), facts())) == {"not-applicable"}


def test_a_host_outside_the_allocation_is_named() -> None:
    listed = job(hosts=("node0", "me@node1.example.org", "node7", "10.0.0.9"))
    found = one(judge(named_node_absent, listed, in_allocation(4), facts()), Status.FAIL)
    assert found.nodes == ("node7",)
    assert statuses(judge(named_node_absent, job(hosts=("node1",)), in_allocation(4), facts())) == {"pass"}
    assert statuses(judge(named_node_absent, listed, fleet(4), facts())) == {"not-applicable"}


def test_the_suggested_command_uses_the_same_executor() -> None:
    broken = replace(fleet(2, node1="no answer"), executor="slurm")
    found = one(judge(node_unreachable, job(), broken, facts()), Status.FAIL)
    assert "`srun --overlap -N1 -n1 -w node1 true`" in found.remedy


def test_clocks_within_a_second_pass() -> None:
    assert statuses(judge(clock_spread, job(), with_clocks(0.0, 0.2, -0.3), facts())) == {"pass"}


def test_a_clock_that_is_off_is_named() -> None:
    found = one(judge(clock_spread, job(), with_clocks(0.0, 0.0, 300.0, 0.0), facts()), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "300" in found.message and "ahead" in found.message and "certificates" in found.message


def test_a_slow_answer_is_not_a_wrong_clock() -> None:
    slow = with_clocks(0.0, 0.0, 1.5, round_trip_s=2.0)
    assert statuses(judge(clock_spread, job(), slow, facts())) == {"pass"}


def test_a_clock_that_was_not_compared_is_unknown() -> None:
    found = one(judge(clock_spread, job(), with_clocks(0.0, None, 0.0), facts()), Status.UNKNOWN)
    assert found.subject == "node1"


def test_the_offset_decides_the_severity() -> None:
    def severity(offset: float, **claims: str) -> Severity | None:
        return one(judge(clock_spread, job(**claims), with_clocks(0.0, 0.0, offset), facts()), Status.FAIL).severity

    assert severity(2.0) is Severity.WARNING and severity(29.0) is Severity.WARNING
    assert severity(31.0) is None and severity(-300.0) is None


def test_a_dynamic_rendezvous_tolerates_fifteen_seconds() -> None:
    met = job(rendezvous_backend="c10d")
    found = one(judge(clock_spread, met, with_clocks(0.0, 0.0, 20.0), facts()), Status.FAIL)
    assert found.severity is None and "considers a node that is 15 s behind dead" in found.message
    assert one(judge(clock_spread, met, with_clocks(0.0, 0.0, 10.0), facts()), Status.FAIL).severity is Severity.WARNING
    static = job(rendezvous_backend="static")
    verdicts = judge(clock_spread, static, with_clocks(0.0, 0.0, 20.0), facts())
    assert one(verdicts, Status.FAIL).severity is Severity.WARNING


def test_with_two_nodes_the_clock_that_agrees_with_ours_is_right() -> None:
    assert one(judge(clock_spread, job(), with_clocks(40.0, 0.1), facts()), Status.FAIL).nodes == ("node0",)


def clock_at(name: str, **changes: object) -> FactRecord:
    usual = Clock(True, "", ("chronyd",))
    return fact(clock, name, replace(usual, **changes))  # type: ignore[arg-type]


def test_an_unsynchronised_clock_is_named() -> None:
    seen = facts(clock_at("node0"), clock_at("node1", synchronised=False, daemons=()), clock_at("node2"))
    found = one(judge(clock_not_kept, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "no time daemon was found" in found.message


def test_one_machine_has_one_clock() -> None:
    nodes = fleet(2)
    local = replace(nodes, records=tuple(replace(r, node=replace(r.node, address="127.0.0.1")) for r in nodes.records))
    seen = facts(clock_at("node0", synchronised=False), clock_at("node1", synchronised=False))
    assert statuses(judge(clock_not_kept, job(), local, seen)) == {"not-applicable"}


def test_no_synchronised_node_is_information() -> None:
    seen = facts(*(clock_at(f"node{i}", synchronised=False, daemon_says="Not synchronised") for i in range(2)))
    found = one(judge(clock_not_kept, job(), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.INFO and "Not synchronised" in found.message


def test_synchronised_clocks_pass_and_unreadable_ones_are_unknown() -> None:
    assert statuses(judge(clock_not_kept, job(), fleet(2), facts(clock_at("node0"), clock_at("node1")))) == {"pass"}
    denied = facts(*(clock_at(f"node{i}", synchronised=None, problem="Operation not permitted") for i in range(2)))
    assert statuses(judge(clock_not_kept, job(), fleet(2), denied)) == {"unknown"}
    assert statuses(judge(clock_not_kept, job(), fleet(2), facts(fact(clock, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(clock_not_kept, job(), fleet(1), facts())) == {"not-applicable"}


def answers(node: str, *problems: Unavailable | None) -> list[FactRecord]:
    """One request for each: answered, or unavailable."""
    return [fact(clock, node, problem or Clock(), params={"number": index}) for index, problem in enumerate(problems)]


NO_PROCESS = Unavailable("crashed", "the node cannot start a process: [Errno 11] Resource temporarily unavailable")


def test_a_node_that_cannot_start_processes_is_an_error() -> None:
    seen = facts(*answers("node0", None, None, None), *answers("node1", None, NO_PROCESS, NO_PROCESS, NO_PROCESS))
    verdicts = judge(node_not_examined, job(), fleet(2), seen)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node1",) and "3 of 4 requests" in found.message and "pids.max" in found.remedy
    assert one(verdicts, Status.PASS).subject == "1 node"


def test_a_node_that_answers_hardly_anything_is_unknown() -> None:
    seen = facts(*answers("node0", TIMEOUT, TIMEOUT, TIMEOUT, None))
    found = one(judge(node_not_examined, job(), fleet(1), seen), Status.UNKNOWN)
    assert found.required and found.nodes == ("node0",) and "3 of 4 requests got no result" in found.message


def test_a_few_missing_answers_leave_the_node_examined() -> None:
    missing = Unavailable("missing", "there is no such file")
    seen = facts(*answers("node0", TIMEOUT, None, None, None), *answers("node1", missing, missing, missing, None))
    assert statuses(judge(node_not_examined, job(), fleet(2), seen)) == {"pass"}
    nothing = facts(*answers("node0", missing, missing))
    assert not one(judge(node_not_examined, job(), fleet(1), nothing), Status.UNKNOWN).required
    denied = facts(*answers("node0", *[Unavailable("denied", "it is not permitted")] * 3))
    assert one(judge(node_not_examined, job(), fleet(1), denied), Status.UNKNOWN).required
    once = facts(*answers("node0", NO_PROCESS, None, None, None))
    assert one(judge(node_not_examined, job(), fleet(1), once), Status.UNKNOWN).required
