"""Two machines that answer for one address are found; routers, bonds and clouds that answer for many are not."""

from __future__ import annotations

from preflight.outcome import Status
from preflight.recording import Facts
from preflight_checks.links.dialling import FREE
from preflight_checks.links.links import port_unreachable
from preflight_checks.network.neighbours import address_answered_twice, plan_neighbours
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.probes.neighbours import Card, Neighbour, Neighbours, neighbours

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, stand_ins, statuses

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
    """Every node knows the others; `odd` says what an observer knows instead, `answers` who answered when asked."""
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


def test_two_answers_for_one_address_name_its_node_and_the_stranger() -> None:
    seen = network(answers={(0, 2): [hardware(2), STRANGER]})
    found = one(judge(address_answered_twice, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and STRANGER in found.message and "besides node2" in found.message


def test_nodes_that_know_different_machines_are_enough_without_root() -> None:
    found = one(judge(address_answered_twice, job(**JOB), fleet(), network({(1, 3): STRANGER})), Status.FAIL)
    assert found.nodes == ("node3",) and "as node1 sees" in found.message


def test_another_node_of_the_job_that_answers_is_named() -> None:
    found = one(judge(address_answered_twice, job(**JOB), fleet(), network({(0, 2): hardware(3)})), Status.FAIL)
    assert found.nodes == ("node2", "node3")


def test_who_answers_for_everybody_is_a_router_or_a_cloud() -> None:
    for count in (2, 4):
        every = {(i, j): "12:34:56:78:9a:bc" for i in range(count) for j in range(count) if i != j}
        seen = network(every, count=count)
        assert statuses(judge(address_answered_twice, job(**JOB), fleet(count), seen)) == {"pass"}


def test_another_card_of_the_same_node_is_no_stranger() -> None:
    seen = network({(1, 3): "06:00:00:00:00:03"}, {(0, 3): [hardware(3), "06:00:00:00:00:03"]})
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(), seen)) == {"pass"}


def test_a_hardware_address_of_another_kind_that_leads_to_the_node_is_fine_and_one_that_does_not_is_not() -> None:
    virtual = {(i, 2): STRANGER for i in (0, 1, 3)}
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(), network(virtual))) == {"pass"}
    seen = network(virtual, status={(0, 2): "refused"})
    found = one(judge(address_answered_twice, job(**JOB), fleet(), seen), Status.FAIL)
    assert "instead of node2" in found.message


def test_links_to_a_contested_address_are_left_to_it() -> None:
    seen = network(answers={(0, 2): [hardware(2), STRANGER]}, status={(1, 2): "refused", (2, 3): "filtered"})
    said = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.UNKNOWN)
    assert "LNK007" in said.message and said.required
    assert Status.FAIL not in {v.status for v in judge(port_unreachable, job(**JOB), fleet(), seen)}


def test_it_is_asked_once_the_nodes_have_dialled_each_other() -> None:
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
    assert list(plan_neighbours(job(**JOB), stand_ins(4), network())) == []


def test_without_the_facts_it_is_unknown() -> None:
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(), facts())) == {"unknown"}
    seen = facts(*(fact(neighbours, f"node{i}", TIMEOUT) for i in range(4)))
    assert "no answer" in one(judge(address_answered_twice, job(**JOB), fleet(), seen), Status.UNKNOWN).message
    assert statuses(judge(address_answered_twice, job(**JOB), fleet(1), facts())) == {"not-applicable"}
    assert statuses(judge(address_answered_twice, job(**JOB), stand_ins(2), facts())) == {"not-applicable"}


def test_without_root_it_says_what_was_compared() -> None:
    records = [
        fact(neighbours, f"node{i}", Neighbours([], [Card("eth0", hardware(i))], {}, "asking needs CAP_NET_RAW"))
        for i in range(2)
    ]
    found = one(judge(address_answered_twice, job(**JOB), fleet(2), facts(*records)), Status.PASS)
    assert "CAP_NET_RAW" in found.subject and "only the neighbour tables" in found.subject
