"""Xid messages by class and age; the fabric of NVSwitches and its manager."""

from __future__ import annotations

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Facts, Unavailable
from preflight_checks.gpus.connections import classes, gpu_fabric_not_ready, gpu_xid_logged
from preflight_checks.probes.devices import Fabric, fabric
from preflight_checks.probes.kernel_log import DriverMessage, KernelLog, kernel_log
from tests.checks.cards import JOB, faulty, node_with
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

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
    from preflight_checks.comparison import table

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
        (Fabric(6, False, "failed", "550.90.07"), "550.90.07 is not the driver's"),
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
