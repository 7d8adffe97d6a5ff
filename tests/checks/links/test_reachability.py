"""The matrix of reachability, and the findings made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import EventRecord, FactRecord, Facts
from preflight.model.requests import probe_name
from preflight_checks.links.dial_requests import FREE, SPREAD, knock_id
from preflight_checks.links.reachability import large_payload_stalls, port_unreachable
from preflight_checks.probes.environment import Environment, ResolvedHost, ServerPlace, environment, server_place
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.link_listener import listen
from preflight_checks.probes.links import Dialled, Target, dial
from preflight_checks.probes.names import Lookup, resolve
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

JOB = {"backend": "gloo", "master_addr": "node0", "master_port": 29500}
MASTER = "the master port 29500"
OK = "ok"
NAMES = [f"node{i}" for i in range(4)]


def network(status: Callable[[str, str, str], str], count: int = 4, *, lost: int = 0) -> Facts:
    """Every pair of `count` nodes; `status(source, peer, label)` is the result of a connection."""
    return facts(*dialled(status, [f"node{i}" for i in range(count)], lost=lost))


def dialled(
    status: Callable[[str, str, str], str], names: list[str], *, lost: int = 0, look: int = 1
) -> list[FactRecord]:
    """The results of each node for all others; in a second try only for pairs with a `status`."""
    records: list[FactRecord] = []
    for source in names:
        targets = []
        for peer in names:
            for label in (FREE, MASTER) if peer == "node0" else (FREE,):
                found = status(source, peer, label) if source != peer else ""
                if not found:
                    continue
                arrived = 1400 if found in ("stalled", "slow") else 1 << 16
                port = 29500 if label == MASTER else 0
                targets.append(
                    Target(peer, label, peer, port, found, "10.0.0.1", "", 2.0, arrived, lost if found != OK else 0)
                )
        params: dict[str, object] = {"targets": [asdict(target) for target in targets]}
        if look > 1:
            params["look"] = look
        peers = tuple(dict.fromkeys(target.peer for target in targets))
        records.append(fact(dial, source, Dialled(targets), params=params, peers=peers))
    return records


def test_every_node_dials_all_others_and_listens_once() -> None:
    wanted = plan(port_unreachable, job(**JOB), fleet(4))
    dialling = [r for r in wanted if r.probe == probe_name(dial)]
    listening = [r for r in wanted if r.probe == probe_name(listen)]
    assert len(wanted) == 8 and {r.node for r in dialling} == {r.node for r in listening} == set(NAMES)
    for request in dialling:
        assert set(request.peers) == set(NAMES) - {request.node}
        master = [t for t in request.params["targets"] if t["port"] == 29500]
        assert len(master) == (request.node != "node0")
        assert request.listen == probe_name(listen) and not request.exclusive
    assert {r.node: r.params["ports"] for r in listening} == {"node0": [29500], **{name: [] for name in NAMES[1:]}}


def test_servers_that_only_the_environment_of_nodes_lists_are_dialled() -> None:
    lists = {"PADDLE_PSERVERS_IP_PORT_LIST": "node0:6170,node1:6171", "PADDLE_TRAINERS_NUM": "2"}
    told = facts(*(fact(environment, f"node{i}", Environment(lists)) for i in range(4)))
    wanted = plan(port_unreachable, job(ps_mode=True), fleet(4), told)
    listening = {r.node: r.params["ports"] for r in wanted if r.probe == probe_name(listen)}
    assert listening == {"node0": [6170], "node1": [6171], "node2": [], "node3": []}
    for request in (r for r in wanted if r.probe == probe_name(dial)):
        ports = {target["port"] for target in request.params["targets"]}
        assert ports == {0, *({6170} if request.node != "node0" else ()), *({6171} if request.node != "node1" else ())}


def test_both_checks_share_their_requests() -> None:
    a, b = plan(port_unreachable, job(**JOB), fleet(4)), plan(large_payload_stalls, job(**JOB), fleet(4))
    assert [r.key for r in a] == [r.key for r in b]


def test_a_sample_includes_the_rendezvous_from_every_node() -> None:
    wanted = [r for r in plan(port_unreachable, job(**JOB), fleet(200)) if r.probe == probe_name(dial)]
    assert len(wanted) == 200
    for request in wanted[1:]:
        master = [t for t in request.params["targets"] if t["port"] == 29500]
        assert len(master) == 1 and master[0]["peer"] == "node0"
        assert len(request.peers) in (48, 49)
    waits = {t.get("after_s", 0.0) for r in wanted for t in r.params["targets"] if t["port"] == 29500}
    assert len(waits) > 2, "not all at the same time"


def test_only_transient_failures_are_tried_again() -> None:
    def status(source: str, peer: str, _label: str) -> str:
        return {"node1": "filtered", "node2": "unresolved", "node3": "stalled"}[peer] if source == "node0" else OK

    seen = network(status)
    assert port_unreachable.follow_up is not None
    (again,) = port_unreachable.follow_up(job(**JOB), fleet(), seen)
    assert (again.node, again.peers) == ("node0", ("node1",))
    assert again.key not in {record.request.key for record in seen.records}


def test_success_on_the_second_try_passes_with_a_note() -> None:
    names = [f"node{i}" for i in range(4)]
    first = dialled(lambda s, p, _l: "filtered" if (s, p) == ("node2", "node1") else OK, names)
    second = dialled(lambda s, p, _l: OK if (s, p) == ("node2", "node1") else "", names, look=2)
    verdicts = judge(port_unreachable, job(**JOB), fleet(), facts(*first, *second))
    assert statuses(verdicts) == {"pass", "unknown"}
    said = one(verdicts, Status.UNKNOWN)
    assert "node2 to node1" in said.subject and not said.required


def test_a_second_failure_is_a_finding_with_the_last_evidence() -> None:
    names = [f"node{i}" for i in range(4)]
    first = dialled(lambda s, p, _l: "silent" if (s, p) == ("node2", "node1") else OK, names)
    second = dialled(lambda s, p, _l: "filtered" if (s, p) == ("node2", "node1") else "", names, look=2)
    found = one(judge(port_unreachable, job(**JOB), fleet(), facts(*first, *second)), Status.FAIL)
    assert found.nodes == ("node2", "node1") and "filtered" in found.message


def test_links_not_tried_in_time_are_unknown() -> None:
    seen = network(lambda s, p, _l: "untried" if s == "node2" else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.UNKNOWN)
    assert found.required and "node2 to node0" in found.subject


def test_nodes_are_dialled_at_the_chosen_interface_or_own_name() -> None:
    cards = [
        Interface("eth0", True, True, False, [Address("10.0.0.2", 24)], 1500),
        Interface("eth1", True, True, False, [Address("10.9.0.2", 24)], 1500),
    ]
    seen = facts(
        fact(interfaces, "node1", Interfaces(cards)),
        fact(resolve, "node1", Lookup("node1", ["127.0.1.1", "10.7.0.2"], own=True), params={"name": ""}),
    )

    def dialled_host(**more: str) -> object:
        wanted = plan(port_unreachable, job(**{**JOB, **more}), fleet(2), seen)
        return next(r.params["targets"][0]["host"] for r in wanted if r.peers == ("node1",))

    assert dialled_host(env_GLOO_SOCKET_IFNAME="eth1") == "10.9.0.2"
    assert dialled_host() == "10.7.0.2"
    assert dialled_host(backend="nccl") == "10.0.0.2"


def test_the_master_is_dialled_as_written() -> None:
    wanted = plan(port_unreachable, job(**{**JOB, "master_addr": "10.1.2.3"}), fleet(2))
    to_master = next(r for r in wanted if r.peers == ("node0",))
    assert to_master.params["targets"][1] == {"peer": "node0", "label": MASTER, "host": "10.1.2.3", "port": 29500}


def test_a_healthy_network_passes_with_its_coverage() -> None:
    found = one(judge(port_unreachable, job(**JOB), fleet(), network(lambda *_: OK)), Status.PASS)
    assert found.subject.startswith("links: all 6 pairs, in both directions") and "UDP" in found.subject


SOME = {("node1", "node3"), ("node3", "node0"), ("node3", "node2")}


@pytest.mark.parametrize(
    ("count", "result", "is_bad", "nodes", "words"),
    [
        (4, "filtered", lambda s, p, _: p == "node3", "node3", "no other node can reach node3, filtered"),
        (8, "filtered", lambda s, p, _: p in ("node3", "node5"), "node3 node5", "no other node can reach node3, node5"),
        (4, "refused", lambda s, p, _: s == "node3", "node3", "node3 cannot reach any other node, 29500, refused"),
        (4, "filtered", lambda s, p, _: "node2" in (s, p), "node2", "reaches no other node and cannot be reached"),
        (4, "filtered", lambda s, p, label: label == MASTER, "node0", "no other node can reach node0, 29500"),
        (
            *(4, "filtered", lambda s, p, label: label == MASTER and s == "node3"),
            *("node3 node0", "node3 cannot reach node0"),
        ),
        (4, "filtered", lambda s, p, _: (s, p) == ("node3", "node2"), "node3 node2", "node3 cannot reach node2"),
        (2, "filtered", lambda *_: True, "node0 node1", "cannot reach each other"),
        (4, "filtered", lambda *_: True, " ".join(NAMES), "no node can reach any other"),
        (4, "filtered", lambda s, p, _: (s, p) in SOME, "node3", "node1 to node3, node3 to node0"),
        (4, "stranger", lambda s, p, label: label == MASTER, "node0", "another program"),
    ],
)
def test_one_fault_is_one_finding(
    count: int, result: str, is_bad: Callable[[str, str, str], bool], nodes: str, words: str
) -> None:
    seen = network(lambda *pair: result if is_bad(*pair) else OK, count)
    found = one(judge(port_unreachable, job(**JOB), fleet(count), seen), Status.FAIL)
    assert found.nodes == tuple(nodes.split())
    assert all(word in found.message for word in words.split(", ")), found.message


def test_the_master_port_alone_quotes_the_port_and_points_at_the_job() -> None:
    seen = network(lambda s, p, label: "filtered" if label == MASTER else OK)
    found = one(judge(port_unreachable, job(**JOB), fleet(), seen), Status.FAIL)
    assert "ephemeral" not in found.message and found.locations and "nft list ruleset" in found.remedy


def test_two_faults_are_two_findings() -> None:
    def status(source: str, peer: str, _label: str) -> str:
        return "filtered" if peer == "node3" or (source, peer) == ("node1", "node2") else OK

    verdicts = judge(port_unreachable, job(**JOB), fleet(), network(status))
    assert [v.nodes for v in verdicts if v.status is Status.FAIL] == [("node3",), ("node1", "node2")]


def test_a_port_that_could_not_be_bound_is_unknown() -> None:
    seen = network(lambda s, p, label: "unbound" if label == MASTER else OK)
    verdicts = judge(port_unreachable, job(**JOB), fleet(), seen)
    found = one(verdicts, Status.UNKNOWN)
    assert found.required and "node0" in found.message and "PRT011" in found.message


def test_a_name_that_does_not_resolve_is_left_to_nam002() -> None:
    def status(source: str, _peer: str, label: str) -> str:
        return "unresolved" if label == MASTER and source == "node3" else OK

    said = network(status)
    assert "does not resolve" in one(judge(port_unreachable, job(**JOB), fleet(), said), Status.FAIL).message
    for answer in (Lookup("node0", [], "unresolved"), Lookup("node0", ["127.0.0.1"])):
        look = fact(resolve, "node3", answer, params={"name": "node0"})
        found = one(judge(port_unreachable, job(**JOB), fleet(), Facts((*said.records, look))), Status.UNKNOWN)
        assert found.required and "NAM002" in found.message


def test_untried_pairs_are_unknown() -> None:
    seen = facts(fact(dial, "node0", TIMEOUT, peers=("node1",)), fact(dial, "node1", TIMEOUT, peers=("node0",)))
    found = one(judge(port_unreachable, job(**JOB), fleet(2), seen), Status.UNKNOWN)
    assert found.required and "node0 to node1" in found.subject
    assert statuses(judge(large_payload_stalls, job(**JOB), fleet(2), seen)) == {"unknown"}


def test_one_node_has_no_links() -> None:
    assert plan(port_unreachable, job(**JOB), fleet(1)) == []
    assert statuses(judge(port_unreachable, job(**JOB), fleet(1), facts())) == {"not-applicable"}


def test_lost_large_payloads_name_node_and_size() -> None:
    seen = network(lambda s, p, _l: "stalled" if "node3" in (s, p) else OK, lost=2000)
    assert statuses(judge(port_unreachable, job(**JOB), fleet(), seen)) == {"pass"}
    found = one(judge(large_payload_stalls, job(**JOB), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is None
    assert "above 1400 bytes do not arrive" in found.message and "MTU" in found.message


def test_a_slow_link_is_a_warning() -> None:
    seen = network(lambda s, p, _l: "slow" if s == "node1" else OK, lost=1 << 20)
    assert one(judge(large_payload_stalls, job(**JOB), fleet(), seen), Status.FAIL).severity is Severity.WARNING


def test_arriving_large_payloads_pass() -> None:
    assert statuses(judge(large_payload_stalls, job(**JOB), fleet(), network(lambda *_: OK))) == {"pass"}


def test_links_of_a_silent_node_are_blocked() -> None:
    seen = network(lambda *_: OK, 3)
    verdicts = judge(port_unreachable, job(**JOB), fleet(4, node3="no answer"), seen)
    assert "NOD001" in one(verdicts, Status.UNKNOWN).message
    assert one(verdicts, Status.PASS).subject.startswith("links: all 3 pairs, in both directions")


def test_a_fault_among_thousands_of_nodes_is_planned_and_judged() -> None:
    count = 2000
    wanted = plan(port_unreachable, job(**JOB), fleet(count))
    names = [f"node{i}" for i in range(count)]
    records = []
    for request in (r for r in wanted if r.probe == probe_name(dial)):
        bad = request.node == "node7"
        targets = [
            Target(t["peer"], t["label"], t["host"], t["port"], "filtered" if bad or t["peer"] == "node9" else OK)
            for t in request.params["targets"]
        ]
        records.append(fact(dial, request.node, Dialled(targets), params=request.params, peers=request.peers))
    verdicts = judge(port_unreachable, job(**JOB), fleet(count), facts(*records))
    found = [v for v in verdicts if v.status is Status.FAIL]
    assert sorted(v.nodes for v in found) == [("node7",), ("node9",)] and len(names) == count


SERVERS = {"ps_mode": True, "ps_server_endpoints": ("10.0.0.1:6170", "10.0.0.2:6170")}


def own_addresses(count: int = 4) -> list[FactRecord]:
    """node0 has 10.0.0.1, and so on; all have the same address of a container bridge."""
    return [
        fact(
            interfaces,
            f"node{i}",
            Interfaces(
                [
                    Interface("eth0", True, True, False, [Address(f"10.0.0.{i + 1}", 24)]),
                    Interface("docker0", True, True, False, [Address("172.17.0.1", 16)]),
                ]
            ),
        )
        for i in range(count)
    ]


def test_servers_given_by_address_are_dialled_on_the_nodes_that_have_it() -> None:
    wanted = plan(port_unreachable, job(**SERVERS), fleet(4), facts(*own_addresses()))
    assert {r.node: r.params["ports"] for r in wanted if r.probe == probe_name(listen)} == {
        "node0": [6170],
        "node1": [6170],
        "node2": [],
        "node3": [],
    }
    for request in (r for r in wanted if r.probe == probe_name(dial)):
        servers = {(t["peer"], t["host"]) for t in request.params["targets"] if t["port"] == 6170}
        assert servers == {pair for pair in (("node0", "10.0.0.1"), ("node1", "10.0.0.2")) if pair[0] != request.node}


def test_a_server_by_an_alias_is_dialled_where_the_alias_leads() -> None:
    known = [
        fact(server_place, f"node{i}", ServerPlace([ResolvedHost("ps-a", ["10.0.0.3"], local=i == 2)]))
        for i in range(4)
    ]
    wanted = plan(port_unreachable, job(ps_mode=True, ps_server_endpoints=("ps-a:6170",)), fleet(4), facts(*known))
    assert [r.node for r in wanted if r.probe == probe_name(listen) and r.params["ports"]] == ["node2"]


@pytest.mark.parametrize("servers", [("10.9.9.9:6170",), ("172.17.0.1:6170",), ("10.0.0.1:6170",)])
def test_a_server_that_nobody_dialled_is_unknown(servers: tuple[str, ...]) -> None:
    stated = job(ps_mode=True, ps_server_endpoints=servers)
    records = dialled(lambda *_: OK, NAMES)
    found = one(judge(port_unreachable, stated, fleet(), facts(*records, *own_addresses())), Status.UNKNOWN)
    assert found.required and "parameter server 0 6170" in found.subject
    assert ("no node is known to have" in found.message) == (servers != ("10.0.0.1:6170",))


def test_nodes_on_one_machine_are_dialled_on_loopback() -> None:
    requests = [r for r in plan(port_unreachable, job(**JOB), local_fleet(2)) if r.peers]
    assert {target["host"] for request in requests for target in request.params["targets"]} == {"127.0.0.1"}


def test_the_remedy_for_a_dropped_path_names_both_ends() -> None:
    seen = network(lambda a, b, label: "filtered" if (a, b) == ("node2", "node1") else OK)
    remedy = one(judge(port_unreachable, job(**JOB), fleet(4), seen), Status.FAIL).remedy
    assert remedy.startswith("Allow TCP from node2 to node1 on ports that the kernel chooses (ephemeral): check")
    assert "on node2 and node1" in remedy


@pytest.mark.parametrize("heard", [[("node3", "node2")], [("node2", "node3")], [], "both"])
def test_the_lost_direction_of_a_pair_is_named(heard: list[tuple[str, str]] | str) -> None:
    seen = network(lambda s, p, _l: "filtered" if {s, p} == {"node2", "node3"} else OK)
    ways = [("node2", "node3"), ("node3", "node2")] if heard == "both" else list(heard)
    events = [EventRecord("key", peer, 1.0, "child", {"heard": knock_id(source, peer)}) for source, peer in ways]  # type: ignore[misc]
    known = Facts(seen.records, tuple(events))
    message = one(judge(port_unreachable, job(**JOB), fleet(), known), Status.FAIL).message
    assert "cannot reach each other" in message
    if len(ways) == 1:
        (source, peer) = ways[0]  # type: ignore[misc]
        assert f"those from {peer} to {source} do not" in message
    else:
        assert "lost" not in message


def test_a_closed_part_of_the_ephemeral_range_is_named() -> None:
    records = []
    for source in NAMES:
        targets = [
            Target(peer, SPREAD, peer, 0, "filtered" if peer == "node3" else OK, "10.0.0.1", ports=[40000, 59000])
            for peer in NAMES
            if peer != source
        ]
        closed = [replace(item, closed_ports=[59000] if item.status != OK else []) for item in targets]
        peers = tuple(item.peer for item in targets)
        records.append(fact(dial, source, Dialled(closed), params={"targets": []}, peers=peers))
    found = one(judge(port_unreachable, job(**JOB), fleet(), facts(*records)), Status.FAIL)
    assert found.nodes == ("node3",) and "on 59000, but 40000" in found.message


def test_large_fleets_dial_the_ephemeral_range_of_a_few_peers() -> None:
    wanted = [r for r in plan(port_unreachable, job(**JOB), fleet(64)) if r.probe == probe_name(dial)]
    dialled = [target["peer"] for r in wanted for target in r.params["targets"] if target.get("spread")]
    assert {dialled.count(f"node{index}") for index in range(64)} == {8}
