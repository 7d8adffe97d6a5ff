"""Two machines that answer for one address are reported; routers, bonds and clouds that answer for many are not."""

from __future__ import annotations

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import Facts
from preflight_checks.links.dial_requests import FREE, address_answered_twice, hardware_address_twice, plan_neighbours
from preflight_checks.links.reachability import port_unreachable
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
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
    assert found.nodes == ("node2",) and STRANGER in found.message and "besides node2" in found.message


def test_nodes_that_know_different_machines_are_enough_without_root() -> None:
    found = one(judge(address_answered_twice, job(**JOB), fleet(), network({(1, 3): STRANGER})), Status.FAIL)
    assert found.nodes == ("node3",) and "as node1 sees" in found.message


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
