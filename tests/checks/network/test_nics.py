"""The chosen interfaces of the nodes: they exist, lead to rank 0, and have one MTU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import OneOf, Scope, Unresolved
from preflight.model.recording import FactRecord, Facts
from preflight.plugins.authoring import Check
from preflight_checks.network.interface_filter import nearest, select, unusable_reason
from preflight_checks.network.nic_health import (
    bond_degraded,
    interface_errors,
    interface_speed,
    nic_driver,
    two_interfaces_in_one_network,
)
from preflight_checks.network.nics import (
    address_on_several_nodes,
    default_interface,
    interface_filter,
    interface_in_another_network,
    interface_in_use,
    interface_mtu,
    interface_route,
    no_route_to_peer,
)
from preflight_checks.probes.environment import Environment, SettingsFile, environment
from preflight_checks.probes.interfaces import (
    Address,
    Interface,
    Interfaces,
    Member,
    NicState,
    NicStates,
    Route,
    Routes,
    interfaces,
    nic_states,
    route,
    routes,
)
from preflight_checks.probes.machine import Identity, identity
from preflight_checks.probes.names import Lookup, resolve
from tests.checks.check_builders import (
    LAUNCH,
    TIMEOUT,
    claim,
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


def nic(name: str, address: str, *, mtu: int = 1500, up: bool = True) -> Interface:
    return Interface(name, up, up, address.startswith("127."), [Address(address, 24)], mtu)


def node(name: str, *found: Interface) -> FactRecord:
    return fact(interfaces, name, Interfaces([nic("lo", "127.0.0.1"), *found]))


def routed(name: str, through: str, *, problem: str = "") -> FactRecord:
    return fact(route, name, Route("head", "10.0.0.1", through, "10.0.0.9", problem), params={"destination": "head"})


NCCL = {"backend": "nccl", "env_NCCL_SOCKET_IFNAME": "eth0"}


def test_without_a_filter_nothing_is_requested_or_reported() -> None:
    assert plan(interface_filter, job(), fleet()) == []
    assert statuses(judge(interface_filter, job(), fleet(), facts())) == {"not-applicable"}


def test_a_node_without_the_interface_is_named_with_its_interfaces() -> None:
    seen = facts(node("node0", nic("eth0", "10.0.0.1")), node("node1", nic("enp0", "10.0.0.2")))
    found = one(judge(interface_filter, job(**NCCL), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "NCCL_SOCKET_IFNAME=eth0" in found.message and "enp0 (10.0.0.2/24)" in found.message


def test_every_interface_of_a_gloo_list_must_exist() -> None:
    seen = facts(node("node0", nic("eth0", "10.0.0.1")))
    gloo = job(backend="gloo", env_GLOO_SOCKET_IFNAME="eth0,eth1")
    found = one(judge(interface_filter, gloo, fleet(1), seen), Status.FAIL)
    assert "eth1 does not exist on node0" in found.message


def test_loopback_and_interfaces_that_are_down_are_errors() -> None:
    lo = job(backend="gloo", env_GLOO_SOCKET_IFNAME="lo")
    seen = facts(node("node0", nic("eth0", "10.0.0.1")), node("node1", nic("eth0", "10.0.0.2", up=False)))
    assert "loopback" in one(judge(interface_filter, lo, fleet(2), seen), Status.FAIL).message
    found = one(judge(interface_filter, job(**NCCL), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "down" in found.message


def test_a_container_bridge_and_several_networks_are_warnings() -> None:
    seen = facts(node("node0", nic("eth0", "10.0.0.1"), nic("eth1", "10.9.0.1"), nic("docker0", "172.17.0.1")))
    several = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth")
    found = one(judge(interface_filter, several, fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "several networks" in found.message
    bridge = job(backend="nccl", env_NCCL_SOCKET_IFNAME="docker")
    assert one(judge(interface_filter, bridge, fleet(2), seen), Status.FAIL).severity is Severity.WARNING


def test_a_filter_of_an_unused_backend_is_at_most_a_warning() -> None:
    seen = facts(node("node0", nic("eth0", "10.0.0.1")))
    other = job(backend="gloo", env_NCCL_SOCKET_IFNAME="ib")
    assert one(judge(interface_filter, other, fleet(1), seen), Status.FAIL).severity is Severity.WARNING


def test_a_value_in_one_branch_is_at_most_a_warning() -> None:
    seen = facts(node("node0", nic("eth0", "10.0.0.1")))
    either = job(backend="nccl", env_NCCL_SOCKET_IFNAME=OneOf(("eth0", "ib0")))
    verdicts = judge(interface_filter, either, fleet(1), seen)
    assert one(verdicts, Status.FAIL).severity is Severity.WARNING


def test_a_node_may_have_its_own_filter() -> None:
    own = claim("env.NCCL_SOCKET_IFNAME", "ens3", scope=Scope(launch=LAUNCH.id, node="node1"))
    seen = facts(node("node0", nic("eth0", "10.0.0.1")), node("node1", nic("ens3", "10.0.0.2")))
    assert statuses(judge(interface_filter, job([own], **NCCL), fleet(2), seen)) == {"pass"}


def test_unknown_without_facts() -> None:
    verdicts = judge(interface_filter, job(**NCCL), fleet(1), facts(fact(interfaces, "node0", TIMEOUT)))
    assert one(verdicts, Status.UNKNOWN).required
    late = job(env_NCCL_SOCKET_IFNAME=Unresolved("$IFACE"))
    assert not one(judge(interface_filter, late, fleet(1), facts()), Status.UNKNOWN).required


ROUTED = {**NCCL, "master_addr": "head"}


def test_other_nodes_are_queried_for_the_route_to_rank_0() -> None:
    wanted = plan(interface_route, job(**ROUTED), fleet(3))
    assert [(r.node, r.params["destination"]) for r in wanted if r.params] == [
        ("node1", "head"),
        ("node2", "head"),
    ]


def test_an_interface_off_the_route_is_a_warning_naming_both() -> None:
    both = (nic("eth0", "10.0.0.2"), nic("eth1", "10.9.0.2"))
    seen = facts(node("node1", *both), routed("node1", "eth1"), node("node2", *both), routed("node2", "eth0"))
    verdicts = judge(interface_route, job(**ROUTED), fleet(3), seen)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node1",) and "eth1" in found.message and "eth0" in found.message
    assert one(verdicts, Status.PASS).subject == "node2"


def test_several_rails_may_include_the_route() -> None:
    seen = facts(node("node1", nic("eth0", "10.0.0.2"), nic("eth1", "10.9.0.2")), routed("node1", "eth1"))
    rails = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth", master_addr="head")
    assert statuses(judge(interface_route, rails, fleet(2), seen)) == {"pass"}


def test_no_route_is_unknown_here() -> None:
    seen = facts(node("node1", nic("eth0", "10.0.0.2")), routed("node1", "", problem="no-route"))
    assert statuses(judge(interface_route, job(**ROUTED), fleet(2), seen)) == {"unknown"}


def test_the_odd_mtu_is_named() -> None:
    seen = facts(*(node(f"node{i}", nic("eth0", f"10.0.0.{i}", mtu=1500 if i == 2 else 9000)) for i in range(4)))
    found = one(judge(interface_mtu, job(**NCCL), fleet(), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "1500" in found.message and "9000" in found.message


def test_equal_mtus_pass_and_unknown_ones_do_not_fail() -> None:
    same = facts(*(node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(2)))
    assert statuses(judge(interface_mtu, job(**NCCL), fleet(2), same)) == {"pass"}
    assert statuses(judge(interface_mtu, job(**NCCL), fleet(2), facts())) == {"unknown"}


def test_the_suggestion_is_in_the_network_of_the_others() -> None:
    seen = facts(
        node("node0", nic("eth0", "10.0.0.1")),
        node("node1", nic("eth1", "10.9.0.2"), nic("ens9", "10.0.0.2")),
    )
    found = one(judge(interface_filter, job(**NCCL), fleet(2), seen), Status.FAIL)
    assert "did you mean ens9?" in found.message


def around(name: str, value: str = "", *, file: str = "", context: bool = True) -> FactRecord:
    """The environment of a node with NCCL_SOCKET_IFNAME, or with it in one of NCCL's files."""
    variables = {} if file or not value else {"NCCL_SOCKET_IFNAME": value}
    files = [SettingsFile(file, "", {"NCCL_SOCKET_IFNAME": value})] if file else []
    found = fact(environment, name, Environment(variables, {}, files))
    return replace(found, request=replace(found.request, context=context))


UNFILTERED = job(backend="nccl")


def test_a_filter_set_only_on_nodes() -> None:
    have = [node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(3)]
    conf = [around(f"node{i}", "ib0" if i == 1 else "", file="/etc/nccl.conf" if i == 1 else "") for i in range(3)]
    found = one(judge(interface_filter, UNFILTERED, fleet(3), facts(*have, *conf)), Status.FAIL)
    assert found.nodes == ("node1",) and "/etc/nccl.conf" in found.message and found.severity is None
    fine = [around(f"node{i}", "eth") for i in range(3)]
    assert statuses(judge(interface_filter, UNFILTERED, fleet(3), facts(*have, *fine))) == {"pass"}


def test_a_filter_in_a_login_environment_is_uncertain() -> None:
    have = [node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(2)]
    bare = [around(f"node{i}", "ib0", context=False) for i in range(2)]
    found = one(judge(interface_filter, UNFILTERED, fleet(2), facts(*have, *bare)), Status.FAIL)
    assert found.severity is Severity.WARNING


def test_the_jobs_filter_overrides_the_nodes_own() -> None:
    have = [node(f"node{i}", nic("eth0", f"10.0.0.{i}")) for i in range(2)]
    other = [around(f"node{i}", "ib0") for i in range(2)]
    assert statuses(judge(interface_filter, job(**NCCL), fleet(2), facts(*have, *other))) == {"pass"}


def test_the_mtu_of_nccls_default_interface() -> None:
    seen = facts(*(node(f"node{i}", nic("eth0", f"10.0.0.{i}", mtu=1500 if i == 2 else 9000)) for i in range(4)))
    assert one(judge(interface_mtu, UNFILTERED, fleet(), seen), Status.FAIL).nodes == ("node2",)


# The interfaces in use: NCCL's own choice, addresses, networks, routes to peers.


def choice_nic(name: str, *addresses: str, running: bool = True) -> Interface:
    found = [Address(text, 24) for text in addresses]
    return Interface(name, True, running, name == "lo", found, 1500)


def choice_node(name: str, *found: Interface) -> FactRecord:
    return fact(interfaces, name, Interfaces([choice_nic("lo", "127.0.0.1"), *found]))


def choice_routed(name: str, **to: str) -> FactRecord:
    """Routes by the last byte of the address: an interface, or empty for none."""
    found = [
        Route(f"10.0.0.{last[1:]}", f"10.0.0.{last[1:]}", through, problem="" if through else "no-route")
        for last, through in to.items()
    ]
    return fact(routes, name, Routes(found), params={"addresses": [route.destination for route in found]})


CHOICE_NCCL = job(backend="nccl")


def test_nccl_takes_what_the_kernel_lists_first() -> None:
    seen = facts(
        choice_node("node0", choice_nic("eth0", "10.0.0.1")),
        choice_node("node1", choice_nic("enx0", "169.254.3.1"), choice_nic("eth0", "10.0.0.2")),
    )
    verdicts = judge(default_interface, CHOICE_NCCL, fleet(2), seen)
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "169.254.3.1" in found.message and "NCCL_SOCKET_IFNAME==eth0" in found.remedy
    assert one(verdicts, Status.PASS).subject == "node0"


def test_a_bridge_a_tunnel_and_a_lost_carrier_are_warnings() -> None:
    for first in (
        choice_nic("br-4f1", "172.18.0.1"),
        choice_nic("tailscale0", "100.64.0.1"),
        choice_nic("eno1", "10.9.0.1", running=False),
    ):
        seen = facts(choice_node("node0", first, choice_nic("eth0", "10.0.0.1")))
        found = one(judge(default_interface, CHOICE_NCCL, fleet(2), seen), Status.FAIL)
        assert found.severity is Severity.WARNING and first.name in found.message


def test_no_interface_at_all() -> None:
    seen = facts(fact(interfaces, "node0", Interfaces([choice_nic("eth0")])))
    assert (
        "no interface with an IP address"
        in one(judge(default_interface, CHOICE_NCCL, fleet(2), seen), Status.FAIL).message
    )


def test_nccl_chooses_only_without_a_filter_and_on_several_machines() -> None:
    filtered = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth0")
    assert statuses(judge(default_interface, filtered, fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(default_interface, CHOICE_NCCL, local_fleet(2), facts())) == {"not-applicable"}
    assert plan(default_interface, CHOICE_NCCL, local_fleet(2)) == []
    assert [request.node for request in plan(default_interface, CHOICE_NCCL, fleet(2))] == ["node0", "node1"]


def test_the_interface_of_nccl_comm_id() -> None:
    have = [choice_nic("eth0", "10.9.0.1"), choice_nic("eth1", "10.0.0.1")]
    found = interface_in_use(job(backend="nccl", env_NCCL_COMM_ID="10.0.0.7:6000"), "node0", have)
    assert found is not None and found.interface.name == "eth1" and "NCCL_COMM_ID" in found.reason


def test_the_family_of_nccl_decides_which_address_is_published() -> None:
    have = [choice_nic("eth0", "10.0.0.1"), choice_nic("eth1", "2001:db8::1")]
    found = interface_in_use(job(backend="nccl", env_NCCL_SOCKET_FAMILY="AF_INET6"), "node0", have)
    assert found is not None and found.interface.name == "eth1"


def test_one_address_on_two_nodes() -> None:
    seen = facts(
        *(choice_node(f"node{i}", choice_nic("docker0", "172.17.0.1")) for i in range(2)), choice_node("node2")
    )
    docker = job(backend="nccl", env_NCCL_SOCKET_IFNAME="docker")
    found = one(judge(address_on_several_nodes, docker, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "172.17.0.1" in found.message


def test_two_names_of_one_machine_may_share_its_address() -> None:
    have = [choice_node(f"node{i}", choice_nic("eth0", "10.0.0.1")) for i in range(2)]
    one_place = [fact(identity, f"node{i}", Identity("node0", place="boot net pid")) for i in range(2)]
    assert statuses(judge(address_on_several_nodes, CHOICE_NCCL, fleet(2), facts(*have, *one_place))) == {"pass"}
    two = [fact(identity, f"node{i}", Identity("node0", place=f"boot{i} net pid")) for i in range(2)]
    assert "fail" in statuses(judge(address_on_several_nodes, CHOICE_NCCL, fleet(2), facts(*have, *two)))


def test_different_addresses_pass_and_unknown_ones_do_not() -> None:
    seen = facts(*(choice_node(f"node{i}", choice_nic("eth0", f"10.0.0.{i}")) for i in range(3)))
    assert statuses(judge(address_on_several_nodes, CHOICE_NCCL, fleet(3), seen)) == {"pass"}
    blind = facts(*(fact(interfaces, f"node{i}", TIMEOUT) for i in range(3)))
    assert statuses(judge(address_on_several_nodes, CHOICE_NCCL, fleet(3), blind)) == {"unknown"}
    assert statuses(judge(address_on_several_nodes, job(), fleet(3), seen)) == {"unknown"}


def _three_nodes_and(*found: Interface) -> Facts:
    return facts(
        *(choice_node(f"node{i}", choice_nic("eth0", f"10.0.0.{i}")) for i in range(3)), choice_node("node3", *found)
    )


def test_a_node_outside_the_common_network() -> None:
    prefixed = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth")
    odd = _three_nodes_and(choice_nic("eth1", "10.9.0.3"), choice_nic("ens5", "10.0.0.3"))
    found = one(judge(interface_in_another_network, prefixed, fleet(), odd), Status.FAIL)
    assert found.nodes == ("node3",) and "ens5" in found.message and "10.9.0.0/24" in found.message


def test_routed_fabrics_have_many_networks() -> None:
    each = facts(*(choice_node(f"node{i}", choice_nic("eth0", f"10.0.{i}.1")) for i in range(4)))
    assert statuses(judge(interface_in_another_network, CHOICE_NCCL, fleet(), each)) == {"pass"}
    another_rack = _three_nodes_and(choice_nic("eth0", "10.9.0.3"))
    assert statuses(judge(interface_in_another_network, CHOICE_NCCL, fleet(), another_rack)) == {"pass"}


def test_gloo_uses_the_interface_its_own_name_leads_to() -> None:
    own = [
        fact(resolve, f"node{i}", Lookup(f"node{i}", [f"10.9.0.{i}" if i == 2 else f"10.0.0.{i}"], own=True))
        for i in range(4)
    ]
    have = [
        choice_node(f"node{i}", choice_nic("eth0", f"10.0.0.{i}"), choice_nic("eth1", f"10.9.0.{i}")) for i in range(4)
    ]
    found = one(judge(interface_in_another_network, job(backend="gloo"), fleet(), facts(*own, *have)), Status.FAIL)
    assert found.nodes == ("node2",) and "own name" in found.message


def test_each_node_is_queried_for_routes_to_the_next_nodes() -> None:
    seen = facts(*(choice_node(f"node{i}", choice_nic("eth0", f"10.0.0.{i + 1}")) for i in range(40)))
    wanted = plan(no_route_to_peer, CHOICE_NCCL, fleet(40), seen)
    assert len(wanted) == 40 and {len(request.params["addresses"]) for request in wanted} == {16, 17}
    assert all("10.0.0.1" in request.params["addresses"] for request in wanted[1:])
    assert wanted[39].params["addresses"][0] == "10.0.0.1"
    assert all(request.because for request in wanted)


def test_a_node_without_any_route_to_it_is_named() -> None:
    seen = facts(
        *(choice_node(f"node{i}", choice_nic("eth0", f"10.0.0.{i}")) for i in range(4)),
        choice_routed("node0", _1="eth0", _2="eth0", _3=""),
        choice_routed("node1", _0="eth0", _2="eth0", _3=""),
        choice_routed("node2", _0="eth0", _1="eth0", _3=""),
        choice_routed("node3", _0="", _1="", _2=""),
    )
    found = one(judge(no_route_to_peer, CHOICE_NCCL, fleet(), seen), Status.FAIL)
    assert found.nodes == ("node3",) and "no route to node3" in found.message and found.severity is None


def test_a_single_missing_route() -> None:
    seen = facts(
        *(choice_node(f"node{i}", choice_nic("eth0", f"10.0.0.{i}")) for i in range(3)),
        choice_routed("node0", _1="eth0", _2="eth0"),
        choice_routed("node1", _0="eth0", _2=""),
        choice_routed("node2", _0="eth0", _1="eth0"),
    )
    found = one(judge(no_route_to_peer, CHOICE_NCCL, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "node2" in found.message


def test_a_route_through_another_interface_is_a_warning() -> None:
    both = [choice_nic("eth0", "10.0.0.1"), choice_nic("eth1", "10.0.0.9")]
    seen = facts(
        choice_node("node0", *both),
        choice_node("node1", choice_nic("eth0", "10.0.0.2")),
        choice_routed("node0", _2="eth1"),
        choice_routed("node1"),
    )
    exact = job(backend="nccl", env_NCCL_SOCKET_IFNAME="=eth0")
    found = one(judge(no_route_to_peer, exact, fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node0",) and "eth1" in found.message
    rails = job(backend="nccl", env_NCCL_SOCKET_IFNAME="eth")
    assert statuses(judge(no_route_to_peer, rails, fleet(2), seen)) == {"pass"}


def test_routes_that_could_not_be_queried_are_unknown() -> None:
    seen = facts(
        choice_node("node0", choice_nic("eth0", "10.0.0.1")),
        choice_node("node1", choice_nic("eth0", "10.0.0.2")),
        fact(routes, "node0", TIMEOUT, params={"addresses": ["10.0.0.2"]}),
    )
    assert statuses(judge(no_route_to_peer, CHOICE_NCCL, fleet(2), seen)) == {"unknown"}
    assert statuses(judge(no_route_to_peer, CHOICE_NCCL, fleet(2), facts())) == {"unknown"}


# Speed, duplex, bonds, errors, drivers, and two interfaces in one network.


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
def test_health_unknown_without_facts(check: Check) -> None:
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


# Interface filters, as NCCL, Gloo and TensorPipe read them.


def filter_nic(name: str, address: str = "10.0.0.1", *, loopback: bool = False) -> Interface:
    found = [Address(address, 24)] if address else []
    return Interface(name, True, True, loopback, found, 1500)


HAVE = [
    filter_nic("lo", "127.0.0.1", loopback=True),
    filter_nic("eth0", "10.0.0.1"),
    filter_nic("eth1", "10.1.0.1"),
    filter_nic("eth10", "10.2.0.1"),
    filter_nic("docker0", "172.17.0.1"),
    filter_nic("ib0", ""),
]


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("eth1,eth0", ["eth0", "eth1", "eth10"]),
        ("=eth10,eth0", ["eth0", "eth10"]),
        ("eth1:1", ["eth1", "eth10"]),
        ("^docker,lo", ["eth0", "eth1", "eth10"]),
        ("^=eth1", ["lo", "eth0", "eth10", "docker0"]),
        ("ib", []),
        ("bond0", []),
        ("e", ["eth0", "eth1", "eth10"]),
    ],
)
def test_nccl(value: str, left: list[str]) -> None:
    assert [item.name for item in select("NCCL_SOCKET_IFNAME", value, HAVE).interfaces] == left


def test_gloo_takes_whole_names_in_the_order_listed() -> None:
    choice = select("GLOO_SOCKET_IFNAME", "eth1,eth0,ib9", HAVE)
    assert [item.name for item in choice.interfaces] == ["eth1", "eth0"]
    assert choice.missing == ("ib9",)
    assert select("GLOO_SOCKET_IFNAME", "eth", HAVE).interfaces == ()


def test_the_family_of_nccl() -> None:
    both = [
        filter_nic("eth0", "10.0.0.1"),
        filter_nic("eth1", "fe80::1"),
        filter_nic("eth2", "2001:db8::2"),
        filter_nic("lo", "::1", loopback=True),
    ]
    six = select("NCCL_SOCKET_IFNAME", "^docker", both, "AF_INET6")
    assert [item.name for item in six.interfaces] == ["eth1", "eth2"] and six.unaddressed == ("eth0",)
    assert [i.name for i in select("NCCL_SOCKET_IFNAME", "eth", both, "AF_INET").interfaces] == ["eth0"]


@pytest.mark.parametrize(
    ("variable", "value", "left", "missing"),
    [
        ("btl_tcp_if_include", "eth1", ["eth1"], ()),
        ("btl_tcp_if_include", "eth", [], ("eth",)),
        ("btl_tcp_if_include", "10.1.0.0/16,eth10", ["eth1", "eth10"], ()),
        # No interface is in it: Open MPI warns and uses all.
        ("btl_tcp_if_include", "192.168.0.0/16", ["eth0", "eth1", "eth10", "docker0"], ()),
        ("btl_tcp_if_exclude", "lo,eth1", ["eth0", "docker0"], ()),
        ("btl_tcp_if_exclude", "127.0.0.0/8,172.16.0.0/12", ["eth0", "eth1", "eth10"], ()),
        ("oob_tcp_if_include", "ib7", [], ("ib7",)),
    ],
)
def test_open_mpi_takes_names_and_networks(
    variable: str, value: str, left: list[str], missing: tuple[str, ...]
) -> None:
    choice = select(f"OMPI_MCA_{variable}", value, HAVE)
    assert [item.name for item in choice.interfaces] == left and choice.missing == missing


def test_horovod_and_libfabric_take_one_whole_name() -> None:
    for variable in ("HOROVOD_GLOO_IFACE", "FI_TCP_IFACE"):
        assert [item.name for item in select(variable, "eth1", HAVE).interfaces] == ["eth1"]
        assert select(variable, "eth", HAVE).missing == ("eth",)


def test_unusable_interfaces() -> None:
    up = filter_nic("eth0", "10.0.0.1")
    assert unusable_reason(up, several=True) == ""
    assert unusable_reason(replace(up, up=False), several=False) == "is down"
    assert unusable_reason(replace(up, running=False), several=False) == "has no carrier"
    assert "link-local" in unusable_reason(filter_nic("eth0", "169.254.1.1"), several=True)
    assert "loopback" in unusable_reason(filter_nic("lo", "127.0.0.1", loopback=True), several=True)
    assert unusable_reason(filter_nic("lo", "127.0.0.1", loopback=True), several=False) == ""
    # On a node with BGP, lo has its own address.
    assert unusable_reason(filter_nic("lo", "10.3.0.1", loopback=True), several=True) == ""


def test_tensorpipe_takes_one_name() -> None:
    assert select("TP_SOCKET_IFNAME", "eth0,eth1", HAVE).interfaces == ()
    assert [i.name for i in select("TP_SOCKET_IFNAME", "eth1", HAVE).interfaces] == ["eth1"]


def test_an_interface_without_address_is_skipped() -> None:
    assert select("NCCL_SOCKET_IFNAME", "ib0", HAVE).unaddressed == ("ib0",)


def test_the_nearest_name_is_one_that_could_be_used() -> None:
    assert nearest("enth0", HAVE) == "eth0"
    assert nearest("zzz", HAVE) == ""
