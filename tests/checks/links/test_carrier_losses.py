"""An interface that loses its carrier between two looks."""

from __future__ import annotations

from preflight.model.findings import Severity, Status
from preflight.model.recording import Facts
from preflight_checks.links.dial_requests import FREE
from preflight_checks.links.reachability import port_unreachable
from preflight_checks.links.slow_links import carrier_lost
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.probes.nic_state import Carriers, NicState, NicStates, carriers, nic_states
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses

JOB = job(backend="gloo", env_GLOO_SOCKET_IFNAME="eth0")


def looks(*changes: int) -> Facts:
    """Each node had 4 changes at first, and this many more later."""
    records = []
    for index, more in enumerate(changes):
        card = Interface("eth0", True, True, False, [Address(f"10.0.0.{index + 1}", 24)], 1500)
        records += [
            fact(interfaces, f"node{index}", Interfaces([card])),
            fact(nic_states, f"node{index}", NicStates([NicState("eth0", carrier_changes=4)])),
            fact(carriers, f"node{index}", Carriers({"eth0": 4 + more})),
        ]
    return facts(*records)


def test_several_losses_are_an_error_and_one_is_a_warning() -> None:
    verdicts = judge(carrier_lost, JOB, fleet(3), looks(0, 6, 2))
    found = {item.nodes: item for item in verdicts if item.status is Status.FAIL}
    assert set(found) == {("node1",), ("node2",)}
    assert found[("node1",)].severity is None and found[("node2",)].severity is Severity.WARNING
    assert "lost or found its carrier 6 times" in found[("node1",)].message
    assert one(verdicts, Status.PASS).subject == "carriers of 1 nodes"


def test_connections_that_failed_meanwhile_blame_no_firewall() -> None:
    records = [*looks(0, 6).records]
    for source, peer in (("node0", "node1"), ("node1", "node0")):
        target = Target(peer, FREE, "10.0.0.2", 0, "filtered", "10.0.0.2")
        records.append(fact(dial, source, Dialled([target]), params={"targets": []}, peers=(peer,)))
    found = one(judge(port_unreachable, JOB, fleet(2), facts(*records)), Status.UNKNOWN)
    assert found.required and "NIC013" in found.message


def test_interfaces_of_containers_excuse_no_firewall() -> None:
    records = []
    for index in range(2):
        cards = [
            Interface("eth0", True, True, False, [Address(f"10.0.0.{index + 1}", 24)], 1500, kind="virtual"),
            Interface("docker0", True, True, False, [Address("172.17.0.1", 16)], 1500, kind="bridge"),
            Interface("cali12", True, True, False, [], 1500, kind="virtual"),
        ]
        states = [NicState(card.name, carrier_changes=4) for card in cards]
        records += [
            fact(interfaces, f"node{index}", Interfaces(cards)),
            fact(nic_states, f"node{index}", NicStates(states)),
            fact(carriers, f"node{index}", Carriers({"eth0": 4, "docker0": 6, "cali12": 8})),
        ]
    for source, peer, address in (("node0", "node1", "10.0.0.2"), ("node1", "node0", "10.0.0.1")):
        target = Target(peer, FREE, address, 0, "filtered", address)
        records.append(fact(dial, source, Dialled([target]), params={"targets": []}, peers=(peer,)))
    found = one(judge(port_unreachable, JOB, fleet(2), facts(*records)), Status.FAIL)
    assert "NIC013" not in found.message


def test_a_steady_carrier_passes() -> None:
    assert statuses(judge(carrier_lost, JOB, fleet(2), looks(0, 0))) == {"pass"}


def test_no_second_look_is_unknown() -> None:
    assert statuses(judge(carrier_lost, JOB, fleet(2), facts(fact(carriers, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(carrier_lost, JOB, local_fleet(2), facts())) == {"not-applicable"}
