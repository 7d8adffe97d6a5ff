"""The matrix of who reaches whom, and the one finding it comes to."""

from __future__ import annotations

import time
from collections.abc import Callable

from preflight.links import disjoint, schedule
from preflight.outcome import Severity, Status
from preflight.recording import FactRecord, Facts
from preflight_checks.dialling import FREE
from preflight_checks.links import port_unreachable
from preflight_checks.payloads import large_payload_stalls
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.probes.names import Lookup, resolve

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, plan, stand_ins, statuses

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
MASTER = "the master port 29500"
OK = "ok"


def network(status: Callable[[str, str, str], str], count: int = 4, *, lost: int = 0) -> Facts:
    """Every pair of `count` nodes; `status(source, peer, label)` says what became of a connection."""
    names = [f"node{i}" for i in range(count)]
    records: list[FactRecord] = []
    for pairs in schedule(names).rounds:
        for a, b in pairs:
            for source, peer in ((a, b), (b, a)):
                targets = []
                for label in (FREE, MASTER) if peer == "node0" else (FREE,):
                    found = status(source, peer, label)
                    arrived = 1400 if found in ("stalled", "slow") else 1 << 20
                    port = 29500 if label == MASTER else 0
                    targets.append(
                        Target(label, peer, port, found, "10.0.0.1", "", 2.0, arrived, lost if found != OK else 0)
                    )
                records.append(fact(dial, source, Dialled(targets), peer=peer))
    return facts(*records)


def test_every_pair_is_dialled_both_ways_in_disjoint_rounds() -> None:
    wanted = plan(port_unreachable, job(**JOB), fleet(4))
    assert len({(r.node, r.peer) for r in wanted}) == len(wanted) == 12
    assert len(disjoint(wanted)) == 3
    for one_round in disjoint(wanted):
        pairs = {frozenset((r.node, r.peer)) for r in one_round}
        assert len(pairs) == 2 and len(one_round) == 4
    to_master = [r for r in wanted if r.peer == "node0"]
    assert all([t["port"] for t in r.params["targets"]] == [0, 29500] for r in to_master)
    assert all(r.listen_params == {"ports": [29500]} for r in to_master)
    assert {str(r.listen_params) for r in wanted if r.peer == "node1"} == {"{'ports': []}"}


def test_both_checks_share_their_requests() -> None:
    a, b = plan(port_unreachable, job(**JOB), fleet(4)), plan(large_payload_stalls, job(**JOB), fleet(4))
    assert [r.key for r in a] == [r.key for r in b]


def test_the_address_dialled_is_that_of_the_chosen_interface_then_of_the_own_name() -> None:
    cards = [
        Interface("eth0", True, True, False, [Address("10.0.0.2", 24)], 1500),
        Interface("eth1", True, True, False, [Address("10.9.0.2", 24)], 1500),
    ]
    seen = facts(
        fact(interfaces, "node1", Interfaces(cards)),
        fact(resolve, "node1", Lookup("node1", ["127.0.1.1", "10.7.0.2"], own=True), params={"name": ""}),
    )

    def dialled(**more: str) -> object:
        wanted = plan(port_unreachable, job(**{**JOB, **more}), fleet(2), seen)
        return next(r.params["targets"][0]["host"] for r in wanted if r.peer == "node1")

    assert dialled(env_GLOO_SOCKET_IFNAME="eth1") == "10.9.0.2"
    assert dialled() == "10.7.0.2"
    assert dialled(backend="nccl") == "10.0.0.2"


def test_the_master_is_dialled_as_it_is_spelled() -> None:
    wanted = plan(port_unreachable, job(**{**JOB, "master_addr": "10.1.2.3"}), fleet(2))
    to_master = next(r for r in wanted if r.peer == "node0")
    assert to_master.params["targets"][1] == {"label": MASTER, "host": "10.1.2.3", "port": 29500}


def test_a_healthy_network_passes_and_says_what_was_covered() -> None:
    found = one(judge(port_unreachable, job(**JOB), fleet(), network(lambda *_: OK)), Status.PASS)
    assert found.subject == "links: all 6 pairs, both ways"


def test_a_node_nobody_reaches_is_one_finding() -> None:
    seen = network(lambda s, p, _l: "filtered" if p == "node3" else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",)
    assert "node3 cannot be reached by anybody" in found.message and "filtered" in found.message


def test_a_node_that_reaches_nobody_takes_the_master_port_along() -> None:
    seen = network(lambda s, p, _l: "refused" if s == "node3" else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",)
    assert "node3 reaches nobody" in found.message and "29500" in found.message and "refused" in found.message


def test_a_node_cut_off_both_ways_is_one_finding() -> None:
    seen = network(lambda s, p, _l: "filtered" if "node2" in (s, p) else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "neither" in found.message


def test_the_master_port_alone_quotes_the_port_and_points_at_the_job() -> None:
    seen = network(lambda s, p, label: "filtered" if label == MASTER else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node0",)
    assert "node0 cannot be reached by anybody" in found.message and "29500" in found.message
    assert "ephemeral" not in found.message
    assert found.locations and "nft list ruleset" in found.remedy


def test_the_master_port_from_one_node_is_that_pair() -> None:
    seen = network(lambda s, p, label: "filtered" if label == MASTER and s == "node3" else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3", "node0") and "node3 cannot reach node0" in found.message


def test_one_direction_of_one_pair() -> None:
    seen = network(lambda s, p, _l: "filtered" if (s, p) == ("node3", "node2") else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3", "node2") and "node3 cannot reach node2" in found.message


def test_two_nodes_that_cannot_reach_each_other_are_one_finding() -> None:
    seen = network(lambda *_: "filtered", 2)
    found = one(judge(port_unreachable, job(**JOB), fleet(2), seen), Status.FAIL)
    assert "cannot reach each other" in found.message


def test_when_nothing_works_nobody_is_blamed() -> None:
    seen = network(lambda *_: "filtered")
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert "no node reaches any other" in found.message and len(found.nodes) == 4


def test_two_faults_are_two_findings() -> None:
    def status(source: str, peer: str, _label: str) -> str:
        return "filtered" if peer == "node3" or (source, peer) == ("node1", "node2") else OK

    verdicts = judge(port_unreachable, job(**JOB), fleet(), network(status))
    assert [v.nodes for v in verdicts if v.status is Status.FAIL] == [("node3",), ("node1", "node2")]


def test_some_links_of_one_node_are_one_finding() -> None:
    bad = {("node1", "node3"), ("node3", "node0"), ("node3", "node2")}
    seen = network(lambda s, p, _l: "filtered" if (s, p) in bad else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",) and "node1 to node3, node3 to node0" in found.message


def test_another_program_on_the_port_is_told_apart() -> None:
    seen = network(lambda s, p, label: "stranger" if label == MASTER else OK)
    assert "another program" in one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL).message


def test_a_port_we_could_not_bind_is_unknown_not_passed() -> None:
    seen = network(lambda s, p, label: "unbound" if label == MASTER else OK)
    verdicts = judge(port_unreachable, job(**JOB), fleet(), seen)
    found = one(verdicts, Status.UNKNOWN)
    assert found.required and "node0" in found.message and "PRT011" in found.message


def test_a_name_that_is_known_not_to_resolve_is_left_to_nam002() -> None:
    def status(source: str, _peer: str, label: str) -> str:
        return "unresolved" if label == MASTER and source == "node3" else OK

    said = network(status)
    assert "does not resolve" in one(judge(port_unreachable, job(**JOB), fleet(), said), Status.FAIL).message
    for answer in (Lookup("node0", [], "unresolved"), Lookup("node0", ["127.0.0.1"])):
        look = fact(resolve, "node3", answer, params={"name": "node0"})
        found = one(judge(port_unreachable, job(**JOB), fleet(), Facts((*said.records, look))), Status.UNKNOWN)
        assert found.required and "NAM002" in found.message


def test_pairs_that_were_not_tried_are_unknown() -> None:
    seen = facts(fact(dial, "node0", TIMEOUT, peer="node1"), fact(dial, "node1", TIMEOUT, peer="node0"))
    found = one(judge(port_unreachable, job(**JOB), fleet(2), seen), Status.UNKNOWN)
    assert found.required and "node0 to node1" in found.subject
    assert statuses(judge(large_payload_stalls, job(**JOB), fleet(2), seen)) == {"unknown"}


def test_one_node_has_no_links() -> None:
    assert plan(port_unreachable, job(**JOB), fleet(1)) == []
    assert statuses(judge(port_unreachable, job(**JOB), fleet(1), facts())) == {"not-applicable"}


def test_large_payloads_that_vanish_name_the_node_and_the_size() -> None:
    seen = network(lambda s, p, _l: "stalled" if "node3" in (s, p) else OK, lost=2000)
    assert statuses(judge(port_unreachable, job(**JOB), fleet(), seen)) == {"pass"}
    found = one(judge(large_payload_stalls, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is None
    assert "above 1400 bytes do not arrive" in found.message and "MTU" in found.message


def test_a_slow_link_is_a_warning() -> None:
    seen = network(lambda s, p, _l: "slow" if s == "node1" else OK, lost=1 << 20)
    assert one(judge(large_payload_stalls, job(**JOB), fleet(), seen), Status.FAIL).severity is Severity.WARNING


def test_large_payloads_that_arrive_pass() -> None:
    assert statuses(judge(large_payload_stalls, job(**JOB), fleet(), network(lambda *_: OK))) == {"pass"}


def test_links_of_a_silent_node_are_blocked() -> None:
    seen = network(lambda *_: OK, 3)
    verdicts = judge(port_unreachable, job(**JOB), fleet(4, node3="no answer"), seen)
    assert "NOD001" in one(verdicts, Status.UNKNOWN).message
    assert one(verdicts, Status.PASS).subject == "links: all 3 pairs, both ways"


def test_a_fault_among_512_nodes_is_judged_in_time() -> None:
    began = time.monotonic()
    wanted = plan(port_unreachable, job(**JOB), fleet(512))
    assert time.monotonic() - began < 5
    assert len(wanted) == 2 * 48 * 256


def test_processes_that_stand_in_for_nodes_are_dialled_on_loopback() -> None:
    requests = plan(port_unreachable, job(**JOB), stand_ins(2))
    assert {target["host"] for request in requests for target in request.params["targets"]} == {"127.0.0.1"}


def test_the_remedy_for_a_dropped_path_names_both_ends() -> None:
    seen = network(lambda a, b, label: "filtered" if (a, b) == ("node2", "node1") else OK)
    remedy = one(judge(port_unreachable, job(**JOB), fleet(4), seen), Status.FAIL).remedy
    assert remedy.startswith("Allow TCP from node2 to node1 on ports the kernel picks (ephemeral): look at")
    assert "on node2 and node1" in remedy
