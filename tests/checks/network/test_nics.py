"""The chosen interfaces of the nodes: they exist, lead to rank 0, and have one MTU."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Severity, Status
from preflight.model.job import OneOf, Scope, Unresolved
from preflight.model.recording import FactRecord
from preflight_checks.network.nics import interface_filter, interface_mtu, interface_route
from preflight_checks.probes.environment import Environment, SettingsFile, environment
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, Route, interfaces, route
from tests.checks.check_builders import LAUNCH, TIMEOUT, claim, fact, facts, fleet, job, judge, one, plan, statuses


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
