"""Speed, duplex, bonds, errors, drivers, and two interfaces in one network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import Facts
from preflight.plugins.authoring import Check
from preflight_checks.network.nic_health import (
    bond_degraded,
    interface_errors,
    interface_speed,
    nic_driver,
    two_interfaces_in_one_network,
)
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.nic_state import Member, NicState, NicStates, nic_states
from tests.checks.check_builders import (
    TIMEOUT,
    fact,
    facts,
    fleet,
    job,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)

JOB = job(backend="nccl", env_NCCL_SOCKET_IFNAME="=eth0")
ALL = (interface_speed, bond_degraded, interface_errors, nic_driver, two_interfaces_in_one_network)
HEALTHY: Mapping[str, Any] = {
    "speed_mbps": 100000,
    "duplex": "full",
    "driver": "mlx5_core",
    "firmware": "28.39.1002",
    "carrier_changes": 4,
    "counters": {"rx_packets": 10_000_000, "tx_packets": 9_000_000, "rx_errors": 0, "tx_errors": 0},
    "rp_filter": 2,
    "arp_ignore": 0,
    "arp_announce": 0,
}


def state(**different: Any) -> NicState:
    return NicState("eth0", **{**HEALTHY, **different})


def nodes(*states: NicState, second: str = "", rules: int = 0) -> Facts:
    """node0 ... with eth0 in these states; the last one has `second` as the address of eth1."""
    records = []
    for index, item in enumerate(states):
        have = [Interface("eth0", True, True, False, [Address(f"10.0.0.{index}", 24)], 1500)]
        if second and index == len(states) - 1:
            have.append(Interface("eth1", True, True, False, [Address(second, 24)], 1500))
        records.append(fact(interfaces, f"node{index}", Interfaces(have)))
        records.append(fact(nic_states, f"node{index}", NicStates([item], rules)))
    return facts(*records)


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_healthy_nodes_have_no_finding(check: Check) -> None:
    assert statuses(judge(check, JOB, fleet(3), nodes(state(), state(), state()))) <= {"pass", "not-applicable"}


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_virtual_machines_report_little(check: Check) -> None:
    bare = NicState("eth0", "up", driver="virtio_net", duplex="unknown")
    assert "fail" not in statuses(judge(check, JOB, fleet(3), nodes(bare, bare, bare)))


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_unknown_without_facts(check: Check) -> None:
    blind = facts(*(fact(nic_states, f"node{i}", TIMEOUT) for i in range(2)))
    assert statuses(judge(check, JOB, fleet(2), blind)) == {"unknown"}
    assert statuses(judge(check, JOB, local_fleet(2), blind)) == {"not-applicable"}
    assert plan(check, JOB, local_fleet(2)) == [] and plan(check, JOB, fleet(2))


def test_the_slow_node_is_named() -> None:
    found = one(judge(interface_speed, JOB, fleet(4), nodes(state(), state(speed_mbps=1000), state())), Status.FAIL)
    assert found.nodes == ("node1",) and "1 Gbit/s" in found.message and found.severity is None


def test_a_faster_node_and_a_tie_pass() -> None:
    faster = nodes(state(), state(), state(speed_mbps=400000))
    assert statuses(judge(interface_speed, JOB, fleet(3), faster)) == {"pass"}
    tie = nodes(state(), state(speed_mbps=1000))
    assert statuses(judge(interface_speed, JOB, fleet(2), tie)) == {"pass"}


def test_half_duplex() -> None:
    found = one(judge(interface_speed, JOB, fleet(2), nodes(state(), state(duplex="half"))), Status.FAIL)
    assert found.nodes == ("node1",) and "half duplex" in found.message


def test_a_bond_that_lost_a_member() -> None:
    whole = state(bond_mode="802.3ad", members=[Member("eth2", True), Member("eth3", True)])
    broken = state(bond_mode="802.3ad", members=[Member("eth2", True), Member("eth3", False)])
    found = one(judge(bond_degraded, JOB, fleet(3), nodes(whole, broken, whole)), Status.FAIL)
    assert found.nodes == ("node1",) and "eth3" in found.message and "1 of 2" in found.message
    other = state(bond_mode="active-backup", members=[Member("eth2", True), Member("eth3", True)])
    found = one(judge(bond_degraded, JOB, fleet(3), nodes(whole, whole, other)), Status.FAIL)
    assert found.nodes == ("node2",) and "active-backup" in found.message


def test_errors_far_above_the_median() -> None:
    noisy = state(counters={"rx_packets": 9_000_000, "tx_packets": 0, "rx_errors": 48_000, "tx_errors": 0})
    found = one(judge(interface_errors, JOB, fleet(3), nodes(state(), noisy, state())), Status.FAIL)
    assert found.nodes == ("node1",) and "48000" in found.message
    few = state(counters={"rx_packets": 1000, "tx_packets": 0, "rx_errors": 20, "tx_errors": 0})
    assert statuses(judge(interface_errors, JOB, fleet(3), nodes(state(), few, state()))) == {"pass"}
    assert statuses(judge(interface_errors, JOB, fleet(3), nodes(noisy, noisy, noisy))) == {"pass"}


def test_a_flapping_carrier() -> None:
    loose = nodes(state(), state(carrier_changes=412), state())
    assert one(judge(interface_errors, JOB, fleet(3), loose), Status.FAIL).nodes == ("node1",)
    assert statuses(judge(interface_errors, JOB, fleet(2), nodes(state(), state(carrier_changes=412)))) == {"pass"}


def test_drivers_and_firmware() -> None:
    old = nodes(state(), state(), state(firmware="28.33.0751"))
    found = one(judge(nic_driver, JOB, fleet(3), old), Status.FAIL)
    assert found.nodes == ("node2",) and "28.33.0751" in found.message
    other = nodes(state(), state(), state(driver="ixgbe", firmware="0x800"))
    found = one(judge(nic_driver, JOB, fleet(3), other), Status.FAIL)
    assert found.nodes == ("node2",) and "ixgbe" in found.message
    mixed = nodes(state(), state(driver="ixgbe", firmware="0x800"))
    assert statuses(judge(nic_driver, JOB, fleet(2), mixed)) == {"pass"}


def test_a_second_interface_in_the_network() -> None:
    found = one(
        judge(two_interfaces_in_one_network, JOB, fleet(2), nodes(state(), state(), second="10.0.0.77")), Status.FAIL
    )
    assert found.nodes == ("node1",) and "rp_filter drops" not in found.message
    strict = nodes(state(), state(rp_filter=1), second="10.0.0.77")
    assert "rp_filter drops" in one(judge(two_interfaces_in_one_network, JOB, fleet(2), strict), Status.FAIL).message


def test_a_second_interface_with_routing_rules() -> None:
    ruled = nodes(state(), state(), second="10.0.0.77", rules=2)
    assert statuses(judge(two_interfaces_in_one_network, JOB, fleet(2), ruled)) == {"pass"}
    told = nodes(state(), state(arp_ignore=1, arp_announce=2), second="10.0.0.77")
    assert statuses(judge(two_interfaces_in_one_network, JOB, fleet(2), told)) == {"pass"}
    elsewhere = nodes(state(), state(), second="10.5.0.77")
    assert statuses(judge(two_interfaces_in_one_network, JOB, fleet(2), elsewhere)) == {"pass"}


def test_the_findings_are_warnings() -> None:
    assert all(check.meta.severity is Severity.WARNING for check in ALL)
