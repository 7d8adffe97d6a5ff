"""Host names: a node's own, and that of rank 0."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Severity, Status
from preflight.model.job import Unresolved
from preflight.model.recording import FactRecord
from preflight_checks.network.names import hostname_loopback, master_name, master_of_another_family
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.names import Lookup, resolve
from tests.checks.check_builders import (
    LAUNCH,
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


def own_name(node: str, *addresses: str, problem: str = "") -> FactRecord:
    return fact(resolve, node, Lookup(node, list(addresses), problem, own=True), params={"name": ""})


def lookup_of(node: str, name: str, *addresses: str, problem: str = "", took_s: float = 0.0) -> FactRecord:
    return fact(resolve, node, Lookup(name, list(addresses), problem, "", took_s), params={"name": name})


def interfaces_of(node: str, *addresses: str) -> FactRecord:
    item = Interface("eth0", True, True, False, [Address(a, 24) for a in addresses], 1500)
    return fact(interfaces, node, Interfaces([item]))


NETWORK = [interfaces_of(f"node{i}", f"10.0.0.{i + 1}") for i in range(4)]


def test_a_name_on_loopback_is_an_error_for_gloo() -> None:
    seen = facts(own_name("node0", "10.0.0.1"), own_name("node1", "127.0.1.1"), own_name("node2", "::1"))
    found = one(judge(hostname_loopback, job(backend="gloo"), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2")
    assert found.severity is None
    assert "127.0.1.1" in found.message and "GLOO_SOCKET_IFNAME" in found.remedy


def test_an_unspecified_backend_is_a_warning() -> None:
    found = one(judge(hostname_loopback, job(), fleet(2), facts(own_name("node0", "127.0.1.1"))), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_an_unresolvable_own_name_makes_gloo_fall_back_on_loopback() -> None:
    seen = facts(own_name("node1", problem="timeout"))
    assert one(judge(hostname_loopback, job(backend="gloo"), fleet(2), seen), Status.FAIL).nodes == ("node1",)


def test_an_interface_override_makes_the_own_name_irrelevant_for_gloo_but_not_for_servers() -> None:
    seen = facts(own_name("node1", "127.0.1.1"))
    chosen = job(backend="gloo", env_GLOO_SOCKET_IFNAME="eth0")
    assert statuses(judge(hostname_loopback, chosen, fleet(2), seen)) == {"not-applicable"}
    servers = job(ps_mode=True, env_GLOO_SOCKET_IFNAME="eth0")
    assert statuses(judge(hostname_loopback, servers, fleet(2), seen)) == {"fail"}


def test_nccl_does_not_use_the_own_name() -> None:
    assert plan(hostname_loopback, job(backend="nccl"), fleet(2)) == []
    assert statuses(judge(hostname_loopback, job(backend="nccl"), fleet(2), facts())) == {"not-applicable"}


def test_a_failed_lookup_is_unknown_and_required() -> None:
    seen = facts(fact(resolve, "node1", TIMEOUT, params={"name": ""}))
    assert one(judge(hostname_loopback, job(backend="gloo"), fleet(2), seen), Status.UNKNOWN).required


def test_every_node_looks_up_the_master() -> None:
    wanted = plan(master_name, job(master_addr="head", master_port=29500), fleet(3))
    assert [r.node for r in wanted if r.params.get("name") == "head"] == ["node0", "node1", "node2"]
    assert all(r.because for r in wanted)
    assert plan(master_name, job(master_addr="127.0.0.1"), fleet(3)) == []
    assert plan(master_name, job(master_addr=Unresolved("$1")), fleet(3)) == []


def test_a_master_that_one_node_cannot_resolve_names_that_node() -> None:
    seen = facts(
        *NETWORK,
        lookup_of("node0", "head", "127.0.1.1"),
        lookup_of("node1", "head", "10.0.0.1"),
        lookup_of("node2", "head", problem="unresolved"),
        lookup_of("node3", "head", problem="timeout", took_s=3.0),
    )
    found = one(judge(master_name, job(master_addr="head"), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2", "node3")


def test_loopback_is_fine_only_for_rank_0() -> None:
    seen = facts(*NETWORK, lookup_of("node0", "head", "127.0.1.1"), lookup_of("node1", "head", "127.0.0.1"))
    found = one(judge(master_name, job(master_addr="head"), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "connect to itself" in found.message


def test_the_address_of_another_node_is_an_error_and_of_no_node_a_warning() -> None:
    wrong = facts(*NETWORK, lookup_of("node1", "head", "10.0.0.3"))
    found = one(judge(master_name, job(master_addr="head"), fleet(), wrong), Status.FAIL)
    assert found.severity is None and "node2" in found.message
    foreign = facts(*NETWORK, lookup_of("node1", "head", "192.0.2.9"))
    assert one(judge(master_name, job(master_addr="head"), fleet(), foreign), Status.FAIL).severity is Severity.WARNING


def test_a_c10d_rendezvous_may_be_on_any_node() -> None:
    seen = facts(*NETWORK, lookup_of("node0", "node2", "10.0.0.3"), lookup_of("node1", "node2", "10.0.0.3"))
    c10d = job(rendezvous_backend="c10d", rendezvous_endpoint="node2:29400")
    assert statuses(judge(master_name, c10d, fleet(), seen)) == {"pass"}


def test_a_good_name_passes() -> None:
    seen = facts(*NETWORK, *(lookup_of(f"node{i}", "head", "10.0.0.1") for i in range(4)))
    assert statuses(judge(master_name, job(master_addr="head"), fleet(), seen)) == {"pass"}


def test_names_of_nodes_on_one_machine_are_not_judged() -> None:
    named = job(backend="gloo", master_addr="head", master_port=29500)
    for check in (hostname_loopback, master_name):
        assert plan(check, named, local_fleet(2)) == []
        assert statuses(judge(check, named, local_fleet(2), facts())) == {"not-applicable"}


def test_paddle_uses_the_own_name_despite_gloos_variable() -> None:
    launch = replace(LAUNCH, launcher="paddle")
    loop = fact(resolve, "node1", Lookup("node1", ["127.0.1.1"], own=True, bound="127.0.1.1"))
    told = replace(job(env_GLOO_SOCKET_IFNAME="eth0"), launches=(launch,))
    found = one(judge(hostname_loopback, told, fleet(2), facts(loop)), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "--host" in found.remedy
    given = replace(job(env_GLOO_SOCKET_IFNAME="eth0", node_address="10.0.0.1"), launches=(launch,))
    assert "fail" not in statuses(judge(hostname_loopback, given, fleet(2), facts(loop)))


def test_a_master_of_an_address_family_that_a_node_lacks() -> None:
    have = [interfaces_of(f"node{i}", f"10.0.0.{i}", "fe80::1") for i in range(2)]
    six = [fact(resolve, f"node{i}", Lookup("head", ["2001:db8::1"]), params={"name": "head"}) for i in range(2)]
    meeting = job(master_addr="head", master_port=29500)
    found = one(judge(master_of_another_family, meeting, fleet(2), facts(*have, *six)), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "only IPv4" in found.message
    both = [
        fact(resolve, f"node{i}", Lookup("head", ["2001:db8::1", "10.0.0.0"]), params={"name": "head"})
        for i in range(2)
    ]
    assert statuses(judge(master_of_another_family, meeting, fleet(2), facts(*have, *both))) == {"pass"}
    blind = [fact(resolve, f"node{i}", TIMEOUT, params={"name": "head"}) for i in range(2)]
    assert statuses(judge(master_of_another_family, meeting, fleet(2), facts(*have, *blind))) == {"unknown"}
