"""The interfaces in use: NCCL's own choice, addresses, networks, routes to peers."""

from __future__ import annotations

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Facts
from preflight_checks.network.nics import (
    address_on_several_nodes,
    default_interface,
    interface_in_another_network,
    no_route_to_peer,
    used,
)
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, Route, Routes, interfaces, routes
from preflight_checks.probes.machine import Identity, identity
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


def nic(name: str, *addresses: str, running: bool = True) -> Interface:
    found = [Address(text, 24) for text in addresses]
    return Interface(name, True, running, name == "lo", found, 1500)


def node(name: str, *found: Interface) -> FactRecord:
    return fact(interfaces, name, Interfaces([nic("lo", "127.0.0.1"), *found]))


def routed(name: str, **to: str) -> FactRecord:
    """Routes by the last byte of the address: an interface, or empty for none."""
    found = [
        Route(f"10.0.0.{last[1:]}", f"10.0.0.{last[1:]}", through, problem="" if through else "no-route")
        for last, through in to.items()
    ]
    return fact(routes, name, Routes(found), params={"addresses": [route.destination for route in found]})


NCCL = job(backend="nccl")


def test_nccl_takes_what_the_kernel_lists_first() -> None:
    seen = facts(
        node("node0", nic("eth0", "10.0.0.1")),
        node("node1", nic("enx0", "169.254.3.1"), nic("eth0", "10.0.0.2")),
    )
    verdicts = judge(default_interface, NCCL, fleet(2), seen)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "169.254.3.1" in found.message and "NCCL_SOCKET_IFNAME==eth0" in found.remedy
    assert one(verdicts, Status.PASS).subject == "node0"


def test_a_bridge_a_tunnel_and_a_lost_carrier_are_warnings() -> None:
    for first in (nic("br-4f1", "172.18.0.1"), nic("tailscale0", "100.64.0.1"), nic("eno1", "10.9.0.1", running=False)):
        seen = facts(node("node0", first, nic("eth0", "10.0.0.1")))
        found = one(judge(default_interface, NCCL, fleet(2), seen), Status.FAIL)
        assert found.severity is Severity.WARNING and first.name in found.message


def test_no_interface_at_all() -> None:
    seen = facts(fact(interfaces, "node0", Interfaces([nic("eth0")])))
    assert "no interface with an IP address" in one(judge(default_interface, NCCL, fleet(2), seen), Status.FAIL).message


def test_nccl_chooses_only_without_a_filter_and_on_several_machines() -> None:
    filtered = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth0")
    assert statuses(judge(default_interface, filtered, fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(default_interface, NCCL, local_fleet(2), facts())) == {"not-applicable"}
    assert plan(default_interface, NCCL, local_fleet(2)) == []
    assert [request.node for request in plan(default_interface, NCCL, fleet(2))] == ["node0", "node1"]


def test_the_interface_of_nccl_comm_id() -> None:
    have = [nic("eth0", "10.9.0.1"), nic("eth1", "10.0.0.1")]
    found = used(job(backend="nccl", env_NCCL_COMM_ID="10.0.0.7:6000"), "node0", have)
    assert found is not None and found.interface.name == "eth1" and "NCCL_COMM_ID" in found.reason


def test_the_family_of_nccl_decides_which_address_is_published() -> None:
    have = [nic("eth0", "10.0.0.1"), nic("eth1", "2001:db8::1")]
    found = used(job(backend="nccl", env_NCCL_SOCKET_FAMILY="AF_INET6"), "node0", have)
    assert found is not None and found.interface.name == "eth1"


def test_one_address_on_two_nodes() -> None:
    seen = facts(*(node(f"node{i}", nic("docker0", "172.17.0.1")) for i in range(2)), node("node2"))
    docker = job(backend="nccl", env_NCCL_SOCKET_IFNAME="docker")
    found = one(judge(address_on_several_nodes, docker, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "172.17.0.1" in found.message


def test_two_names_of_one_machine_may_share_its_address() -> None:
    have = [node(f"node{i}", nic("eth0", "10.0.0.1")) for i in range(2)]
    one_place = [fact(identity, f"node{i}", Identity("node0", place="boot net pid")) for i in range(2)]
    assert statuses(judge(address_on_several_nodes, NCCL, fleet(2), facts(*have, *one_place))) == {"pass"}
    two = [fact(identity, f"node{i}", Identity("node0", place=f"boot{i} net pid")) for i in range(2)]
    assert "fail" in statuses(judge(address_on_several_nodes, NCCL, fleet(2), facts(*have, *two)))


def test_different_addresses_pass_and_unknown_ones_do_not() -> None:
    seen = facts(*(node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(3)))
    assert statuses(judge(address_on_several_nodes, NCCL, fleet(3), seen)) == {"pass"}
    blind = facts(*(fact(interfaces, f"node{i}", TIMEOUT) for i in range(3)))
    assert statuses(judge(address_on_several_nodes, NCCL, fleet(3), blind)) == {"unknown"}
    assert statuses(judge(address_on_several_nodes, job(), fleet(3), seen)) == {"unknown"}


def _three_nodes_and(*found: Interface) -> Facts:
    return facts(*(node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(3)), node("node3", *found))


def test_a_node_outside_the_common_network() -> None:
    prefixed = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth")
    odd = _three_nodes_and(nic("eth1", "10.9.0.3"), nic("ens5", "10.0.0.3"))
    found = one(judge(interface_in_another_network, prefixed, fleet(), odd), Status.FAIL)
    assert found.nodes == ("node3",) and "ens5" in found.message and "10.9.0.0/24" in found.message


def test_routed_fabrics_have_many_networks() -> None:
    each = facts(*(node(f"node{i}", nic("eth0", f"10.0.{i}.1")) for i in range(4)))
    assert statuses(judge(interface_in_another_network, NCCL, fleet(), each)) == {"pass"}
    another_rack = _three_nodes_and(nic("eth0", "10.9.0.3"))
    assert statuses(judge(interface_in_another_network, NCCL, fleet(), another_rack)) == {"pass"}


def test_gloo_uses_the_interface_its_own_name_leads_to() -> None:
    own = [
        fact(resolve, f"node{i}", Lookup(f"node{i}", [f"10.9.0.{i}" if i == 2 else f"10.0.0.{i}"], own=True))
        for i in range(4)
    ]
    have = [node(f"node{i}", nic("eth0", f"10.0.0.{i}"), nic("eth1", f"10.9.0.{i}")) for i in range(4)]
    found = one(judge(interface_in_another_network, job(backend="gloo"), fleet(), facts(*own, *have)), Status.FAIL)
    assert found.nodes == ("node2",) and "own name" in found.message


def test_each_node_is_queried_for_routes_to_the_next_nodes() -> None:
    seen = facts(*(node(f"node{i}", nic("eth0", f"10.0.0.{i + 1}")) for i in range(40)))
    wanted = plan(no_route_to_peer, NCCL, fleet(40), seen)
    assert len(wanted) == 40 and {len(request.params["addresses"]) for request in wanted} == {16, 17}
    assert all("10.0.0.1" in request.params["addresses"] for request in wanted[1:])
    assert wanted[39].params["addresses"][0] == "10.0.0.1"
    assert all(request.because for request in wanted)


def test_a_node_without_any_route_to_it_is_named() -> None:
    seen = facts(
        *(node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(4)),
        routed("node0", _1="eth0", _2="eth0", _3=""),
        routed("node1", _0="eth0", _2="eth0", _3=""),
        routed("node2", _0="eth0", _1="eth0", _3=""),
        routed("node3", _0="", _1="", _2=""),
    )
    found = one(judge(no_route_to_peer, NCCL, fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",) and "no route to node3" in found.message and found.severity is None


def test_a_single_missing_route() -> None:
    seen = facts(
        *(node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(3)),
        routed("node0", _1="eth0", _2="eth0"),
        routed("node1", _0="eth0", _2=""),
        routed("node2", _0="eth0", _1="eth0"),
    )
    found = one(judge(no_route_to_peer, NCCL, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "node2" in found.message


def test_a_route_through_another_interface_is_a_warning() -> None:
    both = [nic("eth0", "10.0.0.1"), nic("eth1", "10.0.0.9")]
    seen = facts(
        node("node0", *both), node("node1", nic("eth0", "10.0.0.2")), routed("node0", _2="eth1"), routed("node1")
    )
    exact = job(backend="nccl", env_NCCL_SOCKET_IFNAME="=eth0")
    found = one(judge(no_route_to_peer, exact, fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node0",) and "eth1" in found.message
    rails = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth")
    assert statuses(judge(no_route_to_peer, rails, fleet(2), seen)) == {"pass"}


def test_routes_that_could_not_be_queried_are_unknown() -> None:
    seen = facts(
        node("node0", nic("eth0", "10.0.0.1")),
        node("node1", nic("eth0", "10.0.0.2")),
        fact(routes, "node0", TIMEOUT, params={"addresses": ["10.0.0.2"]}),
    )
    assert statuses(judge(no_route_to_peer, NCCL, fleet(2), seen)) == {"unknown"}
    assert statuses(judge(no_route_to_peer, NCCL, fleet(2), facts())) == {"unknown"}
