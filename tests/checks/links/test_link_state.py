"""Two machines that answer for one address are reported; routers, bonds and clouds that answer for many are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import Facts
from preflight_checks.links.dial_requests import FREE, address_answered_twice, hardware_address_twice, plan_neighbours
from preflight_checks.links.reachability import port_unreachable, return_path_differs
from preflight_checks.links.slow_links import carrier_lost
from preflight_checks.probes.interfaces import (
    Address,
    Carriers,
    Interface,
    Interfaces,
    NicState,
    NicStates,
    carriers,
    interfaces,
    nic_states,
)
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.probes.neighbours import Card, Neighbour, Neighbours, neighbours
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
STRANGER = "02:00:00:00:99:99"


def hardware(index: int) -> str:
    return f"02:00:00:00:00:{index:02x}"


def address(index: int) -> str:
    return f"10.0.0.{index + 1}"


def network(
    odd: dict[tuple[int, int], str] | None = None,
    answers: dict[tuple[int, int], list[str]] | None = None,
    status: dict[tuple[int, int], str] | None = None,
    count: int = 4,
) -> Facts:
    """Every node knows the others; `odd` replaces entries of an observer, `answers` are the answers to requests."""
    records = []
    for i in range(count):
        others = [j for j in range(count) if j != i]
        table = [Neighbour(address(j), (odd or {}).get((i, j), hardware(j)), "eth0") for j in others]
        asked = {address(j): found for (observer, j), found in (answers or {}).items() if observer == i}
        card = Card("eth0", hardware(i), [address(i)])
        records.append(
            fact(neighbours, f"node{i}", Neighbours(table, [card, Card("eth1", f"06:00:00:00:00:{i:02x}")], asked))
        )
        targets = [
            Target(f"node{j}", FREE, address(j), 0, (status or {}).get((i, j), "ok"), address(j)) for j in others
        ]
        records.append(fact(dial, f"node{i}", Dialled(targets), peers=tuple(f"node{j}" for j in others)))
    return facts(*records)


def test_a_healthy_network_passes() -> None:
    found = one(judge(address_answered_twice, job(**JOB), fleet(), network()), Status.PASS)
    assert "4 nodes" in found.subject


def test_two_answers_name_the_node_and_the_other_machine() -> None:
    seen = network(answers={(0, 2): [hardware(2), STRANGER]})
    found = one(judge(address_answered_twice, job(**JOB), fleet(), seen), Status.FAIL)
    assert (
        found.nodes == ("node2",)
        and STRANGER in found.message
        and "and node2 (" in found.message
        and "both answer" in found.message
    )


def test_nodes_that_know_different_machines_are_enough_without_root() -> None:
    found = one(judge(address_answered_twice, job(**JOB), fleet(), network({(1, 3): STRANGER})), Status.FAIL)
    assert found.nodes == ("node3",) and "according to node1" in found.message


def test_another_node_that_answers_is_named() -> None:
    found = one(judge(address_answered_twice, job(**JOB), fleet(), network({(0, 2): hardware(3)})), Status.FAIL)
    assert found.nodes == ("node2", "node3")


def test_a_machine_that_answers_for_all_is_a_router() -> None:
    for count in (2, 4):
        every = {(i, j): "12:34:56:78:9a:bc" for i in range(count) for j in range(count) if i != j}
        seen = network(every, count=count)
        assert statuses(judge(address_answered_twice, job(**JOB), fleet(count), seen)) == {"pass"}


def test_another_card_of_the_same_node_is_not_a_conflict() -> None:
    seen = network({(1, 3): "06:00:00:00:00:03"}, {(0, 3): [hardware(3), "06:00:00:00:00:03"]})
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(), seen)) == {"pass"}


def test_another_hardware_address_counts_only_if_connections_fail() -> None:
    virtual = {(i, 2): STRANGER for i in (0, 1, 3)}
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(), network(virtual))) == {"pass"}
    seen = network(virtual, status={(0, 2): "refused"})
    found = one(judge(address_answered_twice, job(**JOB), fleet(), seen), Status.FAIL)
    assert "instead of node2" in found.message


def test_links_to_a_conflicting_address_are_not_judged() -> None:
    seen = network(answers={(0, 2): [hardware(2), STRANGER]}, status={(1, 2): "refused", (2, 3): "filtered"})
    said = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.UNKNOWN)
    assert "LNK007" in said.message and said.required
    assert Status.FAIL not in {v.status for v in judge(port_unreachable, job(**JOB), fleet(), seen)}


def test_requests_follow_the_dialling() -> None:
    assert list(plan_neighbours(job(**JOB), fleet(), facts())) == []
    cards = [
        fact(
            interfaces, f"node{i}", Interfaces([Interface("eth0", True, True, False, [Address(address(i), 24)], 1500)])
        )
        for i in range(4)
    ]
    asked = list(plan_neighbours(job(**JOB, env_GLOO_SOCKET_IFNAME="eth0"), fleet(), facts(*cards, *network().records)))
    assert [r.node for r in asked] == [f"node{i}" for i in range(4)]
    assert sorted(asked[0].params["ask"]) == [address(1), address(2), address(3)]
    assert list(plan_neighbours(job(**JOB), local_fleet(4), network())) == []


def test_unknown_without_the_facts() -> None:
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(), facts())) == {"unknown"}
    seen = facts(*(fact(neighbours, f"node{i}", TIMEOUT) for i in range(4)))
    assert "no answer" in one(judge(address_answered_twice, job(**JOB), fleet(), seen), Status.UNKNOWN).message
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(1), facts())) == {"not-applicable"}
    assert statuses(judge(address_answered_twice, job(**JOB), local_fleet(2), facts())) == {"not-applicable"}


def test_without_root_the_pass_names_what_was_compared() -> None:
    records = [
        fact(neighbours, f"node{i}", Neighbours([], [Card("eth0", hardware(i))], {}, "asking needs CAP_NET_RAW"))
        for i in range(2)
    ]
    found = one(judge(address_answered_twice, job(**JOB), fleet(2), facts(*records)), Status.PASS)
    assert "CAP_NET_RAW" in found.subject and "only the neighbour tables" in found.subject


def copied(status: dict[tuple[int, int], str] | None = None) -> Facts:
    """node2 has the hardware address of node1."""
    changed = []
    for record in network(status=status).records:
        if record.request.node == "node2" and record.value is not None and "cards" in record.value:
            card = Card("eth0", hardware(1), [address(2)])
            record = fact(neighbours, "node2", Neighbours([], [card], {}))
        changed.append(record)
    return facts(*changed)


def test_one_hardware_address_of_two_nodes_names_both() -> None:
    seen = copied({(0, 1): "filtered"})
    found = one(judge(hardware_address_twice, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2") and hardware(1) in found.message and found.severity is None
    assert not [v for v in judge(address_answered_twice, job(**JOB), fleet(), seen) if v.status is Status.FAIL]
    blocked = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.UNKNOWN)
    assert "LNK010" in blocked.message


@pytest.mark.parametrize("status", ["ok", "slow", "untried", "unbound"])
def test_one_hardware_address_without_a_failing_link_is_a_warning(status: str) -> None:
    found = one(judge(hardware_address_twice, job(**JOB), fleet(), copied({(0, 1): status})), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_different_hardware_addresses_pass_and_missing_ones_are_unknown() -> None:
    assert statuses(judge(hardware_address_twice, job(**JOB), fleet(), network())) == {"pass"}
    late = facts(fact(neighbours, "node0", TIMEOUT))
    assert statuses(judge(hardware_address_twice, job(**JOB), fleet(), late)) == {"unknown"}
    assert statuses(judge(hardware_address_twice, job(**JOB), local_fleet(2), facts())) == {"not-applicable"}


# An interface that loses its carrier between two looks.


CARRIER_JOB = job(backend="gloo", env_GLOO_SOCKET_IFNAME="eth0")


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
    verdicts = judge(carrier_lost, CARRIER_JOB, fleet(3), looks(0, 6, 2))
    found = {item.nodes: item for item in verdicts if item.status is Status.FAIL}
    assert set(found) == {("node1",), ("node2",)}
    assert found[("node1",)].severity is None and found[("node2",)].severity is Severity.WARNING
    assert "lost or regained its carrier 6 times" in found[("node1",)].message
    assert one(verdicts, Status.PASS).subject == "carriers of 1 nodes"


def test_connections_that_failed_meanwhile_blame_no_firewall() -> None:
    records = [*looks(0, 6).records]
    for source, peer in (("node0", "node1"), ("node1", "node0")):
        target = Target(peer, FREE, "10.0.0.2", 0, "filtered", "10.0.0.2")
        records.append(fact(dial, source, Dialled([target]), params={"targets": []}, peers=(peer,)))
    found = one(judge(port_unreachable, CARRIER_JOB, fleet(2), facts(*records)), Status.UNKNOWN)
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
    found = one(judge(port_unreachable, CARRIER_JOB, fleet(2), facts(*records)), Status.FAIL)
    assert "NIC013" not in found.message


def test_a_steady_carrier_passes() -> None:
    assert statuses(judge(carrier_lost, CARRIER_JOB, fleet(2), looks(0, 0))) == {"pass"}


def test_no_second_look_is_unknown() -> None:
    assert statuses(judge(carrier_lost, CARRIER_JOB, fleet(2), facts(fact(carriers, "node0", TIMEOUT)))) == {"unknown"}
    assert statuses(judge(carrier_lost, CARRIER_JOB, local_fleet(2), facts())) == {"not-applicable"}


# Source addresses of connections: different return paths and address translation are hints.


RETURN_JOB = job(backend="gloo", master_addr="node0", master_port=29500)


def return_network(**changes: dict[str, str]) -> Facts:
    """Three nodes with two networks; `changes` apply to the connections that a node opens."""
    records = []
    for i in range(3):
        node = f"node{i}"
        cards = [
            Interface("eth0", True, True, False, [Address(f"10.77.0.{i}", 16)], 1500),
            Interface("eth1", True, True, False, [Address(f"10.78.0.{i}", 16)], 1500),
        ]
        records.append(fact(interfaces, node, Interfaces(cards)))
        targets = [
            replace(
                Target(f"node{j}", FREE, f"10.77.0.{j}", 0, "ok", f"10.77.0.{j}"),
                **{"source": f"10.77.0.{i}", "seen_as": f"10.77.0.{i}", **changes.get(node, {})},
            )
            for j in range(3)
            if j != i
        ]
        records.append(fact(dial, node, Dialled(targets), peers=tuple(t.peer for t in targets)))
    return facts(*records)


def test_connections_from_the_dialled_network_pass() -> None:
    assert statuses(judge(return_path_differs, RETURN_JOB, fleet(3), return_network())) == {"pass"}


def test_a_different_return_path_names_node_and_addresses() -> None:
    seen = return_network(node2={"source": "10.78.0.2", "seen_as": "10.78.0.2"})
    found = one(judge(return_path_differs, RETURN_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "from 10.78.0.2 (eth1), but the other nodes connect to it at 10.77.0.2 (eth0)" in found.message


def test_translated_addresses_are_reported() -> None:
    found = one(
        judge(return_path_differs, RETURN_JOB, fleet(3), return_network(node1={"seen_as": "192.0.2.9"})), Status.FAIL
    )
    assert found.nodes == ("node1",) and "192.0.2.9" in found.message


def test_unknown_paths_are_not_differences() -> None:
    seen = return_network(node2={"source": "10.99.0.2", "seen_as": ""})
    assert statuses(judge(return_path_differs, RETURN_JOB, fleet(3), seen)) == {"pass"}
    bare = facts(*(record for record in return_network(node1={"seen_as": "192.0.2.9"}).records if record.request.peers))
    assert statuses(judge(return_path_differs, RETURN_JOB, fleet(3), bare)) == {"pass"}
    assert statuses(judge(return_path_differs, RETURN_JOB, fleet(3), facts())) == {"unknown"}
    assert statuses(judge(return_path_differs, RETURN_JOB, fleet(1), facts())) == {"not-applicable"}
    assert statuses(judge(return_path_differs, RETURN_JOB, local_fleet(3), facts())) == {"not-applicable"}
