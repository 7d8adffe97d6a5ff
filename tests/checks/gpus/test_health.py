"""Broken, slow and busy GPUs are named; healthy ones pass."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Facts, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Check
from preflight_checks.gpus.connections import (
    classes,
    gpu_driver_slow,
    gpu_fabric_not_ready,
    gpu_nvlink_down,
    gpu_pcie_narrow,
    gpu_xid_logged,
)
from preflight_checks.gpus.health import (
    expected_speeds,
    gpu_busy,
    gpu_compute_mode,
    gpu_memory_uncorrectable,
    gpu_mig_enabled,
    gpu_repair_pending,
    gpu_settings_differ,
    gpu_throttled,
    gpu_wants_recovery,
    host_floor,
    memory_floor,
    model_of,
    pcie_gbps,
    peer_floor,
    product_floor,
    read_table,
)
from preflight_checks.gpus.presence import gpu_count, gpu_peers_differ
from preflight_checks.plans import table
from preflight_checks.probes.devices import Fabric, fabric
from preflight_checks.probes.gpus import Gpu, GpuProcess, ToolAnswer, gpus, management_tool
from preflight_checks.probes.leftovers import DriverMessage, KernelLog, kernel_log
from tests.checks.check_builders import (
    JOB,
    TIMEOUT,
    fact,
    facts,
    faulty,
    fleet,
    job,
    judge,
    node_with,
    one,
    plan,
    statuses,
)

CHECKS = (
    gpu_memory_uncorrectable,
    gpu_repair_pending,
    gpu_throttled,
    gpu_wants_recovery,
    gpu_pcie_narrow,
    gpu_nvlink_down,
    gpu_mig_enabled,
    gpu_compute_mode,
    gpu_busy,
    gpu_settings_differ,
    gpu_driver_slow,
)
STRANGER = GpuProcess(4321, 60 << 30, "python", "eve")
#: One fault, the check that must find it, and its severity (None: that of the check).
FAULTS: list[tuple[Check, dict[str, Any], Severity | None, str]] = [
    (gpu_memory_uncorrectable, {"ecc_uncorrected": 2}, None, "has 2"),
    (gpu_memory_uncorrectable, {"rows_remap_failed": True}, None, "failed remapping"),
    (gpu_repair_pending, {"rows_remap_pending": True}, None, "pending"),
    (gpu_repair_pending, {"pages_retirement_pending": True}, None, "pending"),
    (gpu_repair_pending, {"pages_retired": 61}, None, "61"),
    (gpu_throttled, {"clock_reasons": 0x80 | 0x8}, None, "power brake"),
    (gpu_throttled, {"clock_reasons": 0x40 | 0x8, "temperature_c": 88}, None, "88 °C"),
    (gpu_throttled, {"temperature_c": 87}, None, "limit is 87"),
    (gpu_throttled, {"clock_reasons": 0x20}, Severity.WARNING, "driver reduces"),
    (gpu_throttled, {"clock_reasons": 0x8}, Severity.WARNING, "345 of 1980"),
    (gpu_wants_recovery, {"recovery_action": 1}, None, "a reset of the GPU"),
    (gpu_wants_recovery, {"recovery_action": 9}, None, "action 9"),
    (gpu_pcie_narrow, {"pcie_width": 8}, None, "8 of 16"),
    (gpu_pcie_narrow, {"pcie_width": 8, "pcie_width_max": 8}, None, "8 of 16"),
    (gpu_pcie_narrow, {"pcie_generation_max": 3}, None, "generation 3"),
    (gpu_nvlink_down, {"nvlinks": [False, *[True] * 17]}, None, "17 of 18"),
    (gpu_nvlink_down, {"nvlink_errors": {"recovery": 4}}, Severity.WARNING, "counts 4"),
    (gpu_mig_enabled, {"mig_enabled": True, "mig_pending": True, "mig_instances": 7}, None, "7 instances"),
    (gpu_mig_enabled, {"mig_pending": True}, Severity.WARNING, "enabled"),
    (gpu_compute_mode, {"compute_mode": 2}, None, "prohibited"),
    (gpu_busy, {"processes": [STRANGER]}, None, "python of eve"),
    (gpu_busy, {"memory_used_bytes": 40 << 30}, Severity.WARNING, "40.0 of 80"),
    (gpu_settings_differ, {"power_limit_w": 500.0}, Severity.WARNING, "has 500 W"),
    (gpu_settings_differ, {"ecc_enabled": False}, Severity.WARNING, "has off"),
    (gpu_settings_differ, {"clock_application_mhz": 1200}, Severity.WARNING, "1200 MHz"),
    (gpu_settings_differ, {"vbios": "95.00"}, Severity.INFO, "95.00"),
    (gpu_settings_differ, {"persistence": False}, Severity.INFO, "has off"),
]


@pytest.mark.parametrize(
    ("check", "what", "severity", "words"), FAULTS, ids=lambda value: ",".join(value) if isinstance(value, dict) else ""
)
def test_a_fault_names_node_index_and_ids(
    check: Check, what: dict[str, Any], severity: Severity | None, words: str
) -> None:
    seen = facts(node_with("node0"), node_with("node1", faulty(1, "node1", **what)), node_with("node2"))
    found = one(judge(check, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",)
    assert "node1 GPU 1 (0000:11:00.0, GPU-node1-1)" in found.message
    assert words in found.message and found.severity in (severity, None if severity else check.meta.severity)
    assert found.remedy and "{" not in found.remedy
    for other in CHECKS:
        if other is not check:
            assert "fail" not in statuses(judge(other, job(**JOB), fleet(3), seen)), other.meta.id


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.meta.id)
def test_healthy_gpus_pass_and_missing_facts_do_not(check: Check) -> None:
    well = facts(node_with("node0"), node_with("node1"))
    assert statuses(judge(check, job(**JOB), fleet(2), well)) == {"pass"}
    blind = facts(fact(gpus, "node0", TIMEOUT), fact(gpus, "node1", Unavailable("denied", "not allowed")))
    assert statuses(judge(check, job(**JOB), fleet(2), blind)) == {"unknown"}
    assert statuses(judge(check, job(backend="gloo"), fleet(2), Facts())) == {"not-applicable"}
    assert plan(check, job(backend="gloo"), fleet(2)) == []


@pytest.mark.parametrize("check", CHECKS[:-1], ids=lambda check: check.meta.id)
def test_a_lost_gpu_does_not_pass(check: Check) -> None:
    lost = Gpu(0, problem="GPU is lost", problem_kind="lost")
    only = facts(node_with("node0", lost, count=1))
    assert statuses(judge(check, job(**JOB), fleet(1), only)) == {"unknown"}


@pytest.mark.parametrize("check", CHECKS[:-2], ids=lambda check: check.meta.id)
def test_unsupported_values_are_not_applicable(check: Check) -> None:
    plain = Gpu(0, "NVIDIA GeForce RTX 4090", "GPU-1", 24 << 30, "8.9")
    assert statuses(judge(check, job(**JOB), fleet(1), facts(node_with("node0", plain, count=1)))) == {"not-applicable"}


def test_unreadable_values_are_unknown() -> None:
    denied = faulty(
        1, "node0", ecc_uncorrected=None, rows_remap_failed=None, unread={"ecc_uncorrected": "No permission"}
    )
    verdicts = judge(gpu_memory_uncorrectable, job(**JOB), fleet(1), facts(node_with("node0", denied)))
    assert statuses(verdicts) == {"pass", "unknown"}
    assert "node0 GPU 1" in one(verdicts, Status.UNKNOWN).subject


def test_one_fault_on_many_cards_is_one_finding() -> None:
    seen = facts(
        *(node_with(f"node{n}", *(faulty(i, f"node{n}", ecc_uncorrected=1) for i in range(2))) for n in range(3))
    )
    found = one(judge(gpu_memory_uncorrectable, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1", "node2") and "and 2 more" in found.message


def test_a_gpu_that_the_job_may_not_use_is_a_warning() -> None:
    seen = facts(node_with("node0", faulty(3, "node0", ecc_uncorrected=1), count=4))
    found = one(judge(gpu_memory_uncorrectable, job(**JOB), fleet(1), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "fewer GPUs than the node has" in found.message


@pytest.mark.parametrize(("named", "severity"), [("0,3", None), ("0,1", Severity.WARNING), ("GPU-node0-3", None)])
def test_the_job_may_name_its_gpus(named: str, severity: Severity | None) -> None:
    seen = facts(node_with("node0", faulty(3, "node0", ecc_uncorrected=1), count=4))
    wanted = job(**JOB, env_CUDA_VISIBLE_DEVICES=named)
    assert one(judge(gpu_memory_uncorrectable, wanted, fleet(1), seen), Status.FAIL).severity is severity


def test_equally_narrow_gpus_are_information() -> None:
    cards = [faulty(index, "node0", pcie_width=8) for index in range(2)]
    found = one(judge(gpu_pcie_narrow, job(**JOB), fleet(1), facts(node_with("node0", *cards))), Status.FAIL)
    assert found.severity is Severity.INFO


def test_links_down_on_all_gpus_are_ignored() -> None:
    cards = [faulty(index, "node0", nvlinks=[False] * 12) for index in range(2)]
    assert statuses(judge(gpu_nvlink_down, job(**JOB), fleet(1), facts(node_with("node0", *cards)))) == {"pass"}


def test_a_gpu_without_links_may_lack_a_bridge() -> None:
    seen = facts(node_with("node0", faulty(0, "node0", nvlinks=[False] * 18), count=3))
    found = one(judge(gpu_nvlink_down, job(**{**JOB, "gpus_per_node": 3}), fleet(1), seen), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_an_idle_link_is_slow_by_design() -> None:
    cards = facts(node_with("node0", faulty(0, "node0", pcie_generation=1), faulty(1, "node0", pcie_generation=5)))
    assert statuses(judge(gpu_pcie_narrow, job(**JOB), fleet(1), cards)) == {"pass"}


def test_exclusive_mode_matters_only_to_ranks_that_share_a_gpu() -> None:
    exclusive = facts(node_with("node0", *(faulty(i, "node0", compute_mode=3) for i in range(2))))
    assert statuses(judge(gpu_compute_mode, job(**JOB), fleet(1), exclusive)) == {"pass"}
    sharing = job(**{**JOB, "processes_per_node": 4})
    assert "4 ranks share 2" in one(judge(gpu_compute_mode, sharing, fleet(1), exclusive), Status.FAIL).message


def test_named_mig_instances_are_accepted() -> None:
    cut = facts(node_with("node0", *(faulty(i, "node0", mig_enabled=True, mig_pending=True) for i in range(2))))
    named = job(**JOB, env_CUDA_VISIBLE_DEVICES="MIG-1234")
    assert statuses(judge(gpu_mig_enabled, named, fleet(1), cut)) == {"pass"}


def test_busy_gpus_count_only_if_too_few_are_free() -> None:
    busy = node_with("node0", *(faulty(i, "node0", processes=[STRANGER]) for i in range(2)), count=4)
    assert statuses(judge(gpu_busy, job(**JOB), fleet(1), facts(busy))) == {"pass"}
    full = node_with("node0", *(faulty(i, "node0", processes=[STRANGER]) for i in range(3)), count=4)
    found = one(judge(gpu_busy, job(**JOB), fleet(1), facts(full)), Status.FAIL)
    assert found.severity is None


def test_only_gpus_that_the_job_names_must_be_free() -> None:
    busy = facts(node_with("node0", faulty(1, "node0", processes=[STRANGER]), count=4))
    assert statuses(judge(gpu_busy, job(**JOB, env_CUDA_VISIBLE_DEVICES="2,3"), fleet(1), busy)) == {"pass"}
    named = judge(gpu_busy, job(**JOB, env_CUDA_VISIBLE_DEVICES="0,1"), fleet(1), busy)
    assert one(named, Status.FAIL).severity is None


def test_hidden_processes_in_a_container_are_a_warning() -> None:
    card = faulty(0, "node0", processes=[GpuProcess(4321, 60 << 30)])
    inside = one(
        judge(gpu_busy, job(**JOB), fleet(1), facts(node_with("node0", card, host_processes=False))), Status.FAIL
    )
    assert inside.severity is Severity.WARNING
    outside = one(judge(gpu_busy, job(**JOB), fleet(1), facts(node_with("node0", card))), Status.FAIL)
    assert outside.severity is None


def test_daemons_and_small_contexts_are_ignored() -> None:
    card = faulty(
        0,
        "node0",
        processes=[GpuProcess(7, 2 << 30, "nv-hostengine", "root"), GpuProcess(8, 300 << 20, "Xorg", "root")],
    )
    assert statuses(judge(gpu_busy, job(**JOB), fleet(1), facts(node_with("node0", card)))) == {"pass"}


def test_a_hanging_gpu_is_named_and_makes_the_count_unknown() -> None:
    hung = faulty(1, "node1", problem="nvmlDeviceGetTemperature did not return within 4 s", problem_kind="timeout")
    seen = facts(node_with("node0"), node_with("node1", hung))
    slow = one(judge(gpu_driver_slow, job(**JOB), fleet(2), seen), Status.FAIL)
    assert slow.nodes == ("node1",) and "GPU 1" in slow.message and "nvmlDeviceGetTemperature" in slow.message
    count = one(judge(gpu_count, job(**JOB), fleet(2), seen), Status.UNKNOWN)
    assert count.required and count.subject == "node1"


def test_a_hanging_driver_is_named_and_unknown() -> None:
    seen = facts(node_with("node0"), node_with("node1", problem="timeout", detail="nvmlInit did not return", count=0))
    assert one(judge(gpu_driver_slow, job(**JOB), fleet(2), seen), Status.FAIL).nodes == ("node1",)
    assert one(judge(gpu_count, job(**JOB), fleet(2), seen), Status.UNKNOWN).required


def test_peer_access_that_differs_on_one_node() -> None:
    def peers(reads: list[int], distances: list[int]) -> list[FactRecord]:
        usual = {"peer_reads": [0, 0, 0], "peer_distances": [10, 10, 10], "count": 3}
        odd = {"peer_reads": reads, "peer_distances": distances, "count": 3}
        return [node_with("node0", **usual), node_with("node1", **odd), node_with("node2", **usual)]

    wanted = job(**{**JOB, "gpus_per_node": 3})
    off = one(judge(gpu_peers_differ, wanted, fleet(3), facts(*peers([0, 4, 0], [10, 10, 10]))), Status.FAIL)
    assert off.nodes == ("node1",) and "GPU 0 and 2: no (disabled by a registry key)" in off.message
    far = one(judge(gpu_peers_differ, wanted, fleet(3), facts(*peers([0, 0, 0], [10, 10, 50]))), Status.FAIL)
    assert far.severity is Severity.INFO and "GPU 1 and 2: level 50" in far.message
    assert statuses(judge(gpu_peers_differ, wanted, fleet(3), facts(*peers([0, 0, 0], [10, 10, 10])))) == {"pass"}
    assert statuses(judge(gpu_peers_differ, wanted, fleet(1), facts(node_with("node0")))) == {"unknown"}
    assert statuses(judge(gpu_peers_differ, wanted, fleet(1), facts(fact(gpus, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(gpu_peers_differ, job(backend="gloo"), fleet(1), Facts())) == {"not-applicable"}


def test_the_vendors_tool() -> None:
    def tool(node: str, took: float, code: int | None, last_line: str = "") -> Any:
        return fact(management_tool, node, ToolAnswer("/usr/bin/nvidia-smi", took, code, last_line))

    both = (node_with("node0"), node_with("node1"))
    quick = facts(*both, tool("node0", 0.1, 0), tool("node1", 0.2, 0))
    assert statuses(judge(gpu_driver_slow, job(**JOB), fleet(2), quick)) == {"pass"}
    hung = one(
        judge(gpu_driver_slow, job(**JOB), fleet(2), facts(*both, tool("node0", 0.1, 0), tool("node1", 6.0, None))),
        Status.FAIL,
    )
    assert hung.nodes == ("node1",) and "no response within 6 s" in hung.message
    broken = one(
        judge(gpu_driver_slow, job(**JOB), fleet(2), facts(*both, tool("node1", 0.1, 9, "NVIDIA-SMI has failed"))),
        Status.FAIL,
    )
    assert "NVIDIA-SMI has failed" in broken.message


# Xid messages by class and age; the fabric of NVSwitches and its manager.


HOUR = 3600.0


def logged(node: str, *complaints: DriverMessage) -> FactRecord:
    return fact(kernel_log, node, KernelLog("/dev/kmsg", list(complaints)))


def xid(code: int, age_s: float | None = HOUR, pci: str = "0000:11:00.0") -> DriverMessage:
    return DriverMessage("xid", code, pci, 2, age_s, "words of the driver")


@pytest.mark.parametrize(
    ("complaint", "severity"),
    [
        (xid(79), Severity.ERROR),
        (xid(48, None), Severity.ERROR),
        (xid(79, 30 * HOUR), Severity.WARNING),
        (xid(74), Severity.WARNING),
        (xid(94), Severity.WARNING),
        (xid(94, 30 * HOUR), Severity.INFO),
        (xid(31), Severity.INFO),
        (xid(9999), Severity.INFO),
        (DriverMessage("sxid", 12028, "0000:c4:00.0", 1, HOUR, "Non-fatal, Link 32"), Severity.INFO),
        (DriverMessage("sxid", 20034, "0000:c4:00.0", 1, HOUR, "Fatal, Link 30 LTSSM"), Severity.ERROR),
    ],
)
def test_a_message_counts_by_class_and_age(complaint: DriverMessage, severity: Severity) -> None:
    seen = facts(node_with("node0"), node_with("node1"), logged("node0"), logged("node1", complaint))
    found = one(judge(gpu_xid_logged, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.severity is severity and found.nodes == ("node1",)
    assert f"{complaint.code}" in found.message
    assert ("GPU 1 (0000:11:00.0)" in found.message) is (complaint.pci == "0000:11:00.0")


def test_each_code_has_one_class() -> None:
    from preflight_checks.plans import table

    listed = [code for row in table("xid")["xid"] for code in row["codes"]]
    assert len(listed) == len(set(listed)) == len(classes())
    assert {row["code"] for row in table("xid")["meaning"]} <= set(listed)


def test_an_empty_log_passes_and_an_unreadable_one_does_not() -> None:
    assert statuses(judge(gpu_xid_logged, job(**JOB), fleet(1), facts(logged("node0")))) == {"pass"}
    closed = facts(fact(kernel_log, "node0", Unavailable("denied", "/dev/kmsg may not be read")))
    assert statuses(judge(gpu_xid_logged, job(**JOB), fleet(1), closed)) == {"unknown"}
    assert plan(gpu_xid_logged, job(backend="gloo"), fleet(1)) == []
    assert statuses(judge(gpu_xid_logged, job(backend="gloo"), fleet(1), Facts())) == {"not-applicable"}


# --- fabric ---

DRIVER = "550.54.15"


def fabric_facts(value: Fabric, **card: int) -> Facts:
    cards = [faulty(i, "node1", **card) for i in range(2)]
    return facts(
        node_with("node0"), node_with("node1", *cards), fact(fabric, "node0", Fabric(0)), fact(fabric, "node1", value)
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Fabric(6, False, "failed", "550.90.07"), "550.90.07, but the driver's"),
        (Fabric(6, False, "", ""), "no running Fabric Manager"),
        (Fabric(6, None, "inactive", DRIVER), "no running Fabric Manager"),
    ],
)
def test_switches_without_the_manager(value: Fabric, words: str) -> None:
    found = one(judge(gpu_fabric_not_ready, job(**JOB), fleet(2), fabric_facts(value)), Status.FAIL)
    assert found.nodes == ("node1",) and words in found.message and found.severity is None


def test_a_running_manager_of_another_version_is_a_warning() -> None:
    seen = fabric_facts(Fabric(6, True, "active", "550.90.07"))
    found = one(judge(gpu_fabric_not_ready, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(("state", "status"), [(2, 0), (1, 0), (3, 999)])
def test_unregistered_gpus(state: int, status: int) -> None:
    seen = fabric_facts(Fabric(4, True, "active", DRIVER), fabric_state=state, fabric_status=status)
    found = one(judge(gpu_fabric_not_ready, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "node1 GPU 0" in found.message


def test_a_completed_fabric_passes() -> None:
    ready = fabric_facts(Fabric(4, None, "", ""), fabric_state=3, fabric_status=0)
    assert statuses(judge(gpu_fabric_not_ready, job(**JOB), fleet(2), ready)) == {"pass"}
    running = fabric_facts(Fabric(6, True, "active", DRIVER))
    assert statuses(judge(gpu_fabric_not_ready, job(**JOB), fleet(2), running)) == {"pass"}


def test_processes_hidden_by_a_container_are_unknown() -> None:
    hidden = fabric_facts(Fabric(6, None, "", ""))
    assert "unknown" in statuses(judge(gpu_fabric_not_ready, job(**JOB), fleet(2), hidden))
    nothing = facts(node_with("node0"), fact(fabric, "node0", TIMEOUT))
    assert statuses(judge(gpu_fabric_not_ready, job(**JOB), fleet(1), nothing)) == {"unknown"}


def test_nodes_without_switches_are_not_applicable() -> None:
    none = facts(node_with("node0"), fact(fabric, "node0", Fabric(0)))
    assert statuses(judge(gpu_fabric_not_ready, job(**JOB), fleet(1), none)) == {"not-applicable"}


# What NVML said about real, healthy GPUs: every value is read, and no check finds anything.


RECORDED = Path(__file__).with_name("recorded")


def recorded(name: str) -> dict[str, Any]:
    """The answer of the probe."""
    found = json.loads((RECORDED / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_healthy_gpu_is_found_healthy(name: str) -> None:
    value = recorded(name)
    assert value["gpus"][0]["unread"] == {} and value["driver"] == value["kernel_driver"] == "580.159.04"
    seen = facts(FactRecord(Request(probe_name(gpus), "node0", {}), value))
    asked = job(nodes=1, processes_per_node=1, backend="nccl", accelerator="cuda")
    for check in CHECKS:
        states = {verdict.status for verdict in judge(check, asked, fleet(1), seen)}
        assert states <= {Status.PASS, Status.NOT_APPLICABLE}, check.meta.id
    one(judge(gpu_count, asked, fleet(1), seen), Status.PASS)


# The table of expected speeds: valid, one row a card, and floors that leave a margin below what was achieved.


def test_names_are_those_of_nvml_with_or_without_the_maker() -> None:
    for name in ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "Tesla V100-SXM2-32GB", "AMD Instinct MI300X"):
        assert model_of(name) is not None, name
    for name in ("", "NVIDIA H100", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA GeForce GTX 1080"):
        assert model_of(name) is None, name


@pytest.mark.parametrize("row", expected_speeds().gpu, ids=lambda row: row.names[0])
def test_every_card_has_a_source_and_floors_below_its_peaks(row: Any) -> None:
    assert expected_speeds().sources[row.source].startswith("https://")
    for precision, peak in row.tflops.items():
        floor = product_floor(row, precision)
        assert floor is not None and 0 < floor.least < peak
    assert 0 < memory_floor(row).least < row.memory
    assert host_floor(row, None, None).least < (row.host or 130)


def test_products_of_a_precision_that_a_card_lacks_have_no_floor() -> None:
    row = model_of("Tesla V100-SXM2-16GB")
    assert row is not None and product_floor(row, "bf16") is None


def test_the_floor_of_copies_follows_the_slot() -> None:
    row = model_of("NVIDIA H200")
    assert row is not None
    assert host_floor(row, 5, 16).least == pytest.approx(31.5, abs=0.1)
    assert host_floor(row, 4, 16).least == pytest.approx(15.75, abs=0.1)
    assert host_floor(row, 3, 8).least == pytest.approx(3.94, abs=0.1)
    assert host_floor(row, 6, 16).least == host_floor(row, 5, 16).least
    assert pcie_gbps(9, 16) == pcie_gbps(6, 16) and pcie_gbps(0, 1) == 0.25
    assert peer_floor(row, 0) is None and peer_floor(row, 4).least == 50  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["gpu"].append(data["gpu"][0]),
        lambda data: data["gpu"][0].update(source="nowhere"),
        lambda data: data["gpu"][0].update(memory=-1),
        lambda data: data["gpu"][0].update(colour="green"),
        lambda data: data["gpu"][0].pop("pcie"),
        lambda data: data["gpu"][0].pop("memory"),
        lambda data: data["gpu"][0]["pcie"].update(lanes=17),
        lambda data: data["gpu"][3]["floors"].pop("reason"),
        lambda data: data.update(schema=2),
        lambda data: data["floors"].update(products=1.5),
        lambda data: data["floors"].update(products=0.8),
        lambda data: data["gpu"][0].update(date="yesterday"),
    ],
)
def test_a_damaged_table_is_rejected(change: Any) -> None:
    data = copy.deepcopy(table("expected_speed"))
    change(data)
    with pytest.raises((ValueError, TypeError)):
        read_table(data)
