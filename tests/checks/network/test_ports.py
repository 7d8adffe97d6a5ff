"""Ports the job will bind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job, Launch, Span, Strength
from preflight.model.recording import FactRecord, Fleet
from preflight.model.requests import probe_name
from preflight.plugins.authoring import Check
from preflight_checks.network.kernel_network import (
    connection_tracking_full,
    ephemeral_ports_few,
    fixed_port_taken_by_kernel,
    listen_backlog_small,
    neighbour_table_small,
    port_in_use,
    proxy_captures_peers,
)
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, KernelNetwork, interfaces, kernel_network
from preflight_checks.probes.ports import OTHER_RUN, Holder, PortState, Proxies, bindable, free_ports, proxies
from tests.checks.check_builders import (
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

JOB = {"master_addr": "node0", "master_port": 29500}


def state(node: str, port: int, problem: str = "", host: str = "", holders: tuple[Holder, ...] = ()) -> FactRecord:
    params = {"port": port, "host": host} if host else {"port": port}
    return fact(bindable, node, PortState(port, host, problem, "Address already in use", list(holders)), params=params)


def test_only_the_node_that_binds_is_queried() -> None:
    wanted = plan(port_in_use, job(**JOB), fleet())
    assert [(r.node, dict(r.params)) for r in wanted] == [("node0", {"port": 29500})]
    assert wanted[0].required and wanted[0].because


def test_a_c10d_rendezvous_is_bound_where_its_host_is_with_its_own_default() -> None:
    wanted = plan(port_in_use, job(rendezvous_backend="c10d", rendezvous_endpoint="node2"), fleet())
    assert [(r.node, r.params["port"]) for r in wanted] == [("node2", 29400)]


def test_a_held_port_is_an_error_with_its_holder() -> None:
    held = state("node0", 29500, "in-use", holders=(Holder("0.0.0.0:29500", True, 4711, "python train.py", 1000),))
    found = one(judge(port_in_use, job(**JOB), fleet(), facts(held)), Status.FAIL)
    assert found.nodes == ("node0",)
    assert "29500" in found.message and "4711" in found.message and "python train.py" in found.message


def test_a_hidden_holder_is_reported_by_its_user() -> None:
    held = state("node0", 29500, "in-use", holders=(Holder("0.0.0.0:29500", True, 0, "", 1000),))
    assert "user 1000" in one(judge(port_in_use, job(**JOB), fleet(), facts(held)), Status.FAIL).message


def test_a_free_port_passes_and_a_missing_fact_is_unknown() -> None:
    assert statuses(judge(port_in_use, job(**JOB), fleet(), facts(state("node0", 29500)))) == {"pass"}
    late = facts(fact(bindable, "node0", TIMEOUT, params={"port": 29500}))
    assert one(judge(port_in_use, job(**JOB), fleet(), late), Status.UNKNOWN).required


def test_servers_given_by_address_are_found_on_their_node() -> None:
    servers = job(ps_mode=True, ps_server_endpoints=("10.0.0.1:6174", "10.0.0.9:6174"))
    wanted = plan(port_in_use, servers, fleet(2))
    assert len(wanted) == 4
    seen = facts(
        state("node0", 6174, "", "10.0.0.1"),
        state("node1", 6174, "not-local", "10.0.0.1"),
        state("node0", 6174, "not-local", "10.0.0.9"),
        state("node1", 6174, "not-local", "10.0.0.9"),
    )
    verdicts = judge(port_in_use, servers, fleet(2), seen)
    found = one(verdicts, Status.FAIL)
    assert "10.0.0.9" in found.message and "not an address of any of the 2 nodes" in found.message
    assert one(verdicts, Status.PASS).subject == "parameter server 0 6174 on node0"


def test_a_reserved_port_is_reported_as_such() -> None:
    low = job(master_addr="node0", master_port=80)
    denied = facts(fact(bindable, "node0", PortState(80, "", "denied", "Permission denied"), params={"port": 80}))
    assert "1024" in one(judge(port_in_use, low, fleet(), denied), Status.FAIL).message


def test_ports_of_a_silent_node_are_unknown_not_passed() -> None:
    verdicts = judge(port_in_use, job(**JOB), fleet(2, node0="no answer"), facts())
    assert "NOD001" in one(verdicts, Status.UNKNOWN).message


def test_port_0_is_not_checked() -> None:
    assert plan(port_in_use, job(rendezvous_backend="c10d", rendezvous_endpoint="node0:0"), fleet()) == []


def test_free_ports_are_requested_if_nodes_share_a_machine() -> None:
    def requesting_nodes(job_: Job, nodes: Fleet) -> list[str]:
        return [request.node for request in plan(port_in_use, job_, nodes) if request.probe == probe_name(free_ports)]

    for unnamed in (job(), job(nodes=2), job(master_addr="node0"), job(ps_mode=True, ps_servers=1, ps_workers=1)):
        assert requesting_nodes(unnamed, local_fleet(2)) == ["local0"] == requesting_nodes(unnamed, local_fleet(1))
        assert requesting_nodes(unnamed, fleet(2)) == []
    assert requesting_nodes(job(**JOB), local_fleet(2)) == []


def test_no_default_port_is_needed_if_nodes_share_a_machine() -> None:
    default = replace(claim("master_port", 29500, "torchrun --nnodes=2"), strength=Strength.DEFAULT)
    unnamed, spelled = job([default], master_addr="node0"), job(**JOB)
    ports = [
        [r.params["port"] for r in plan(port_in_use, one_, nodes) if r.probe == probe_name(bindable)]
        for one_ in (unnamed, spelled)
        for nodes in (local_fleet(2), local_fleet(1), fleet(2))
    ]
    assert ports == [[], [29500], [29500], [29500], [29500], [29500]]


def test_a_port_held_by_another_run_of_preflight_blames_nobody() -> None:
    held = state("node0", 29500, "in-use", holders=(Holder("0.0.0.0:29500", True, 4711, OTHER_RUN, 1000),))
    found = one(judge(port_in_use, job(**JOB), fleet(), facts(held)), Status.UNKNOWN)
    assert found.required and found.nodes == ("node0",) and "another run of preflight uses" in found.message


# Proxies that capture traffic to peers, and the kernel's network limits.


TENSORFLOW = job(env_TF_CONFIG='{"cluster": {}}')
RAY = Job(
    "ray",
    launches=(Launch("head.sh:2", "ray", Span("head.sh", 2, 1, 2, 9, "ray start")),),
    claims=(claim("ray_role", "head"),),
)


def proxied(node: str, no_proxy: str = "", **variables: str) -> FactRecord:
    exceptions = {"no_proxy": no_proxy.split(",")} if no_proxy else {}
    return fact(proxies, node, Proxies(variables, exceptions))


def addressed(node: str, address: str) -> FactRecord:
    have = [Interface("lo", True, True, True, [Address("127.0.0.1", 8)])]
    have.append(Interface("eth0", True, True, False, [Address(address, 24)]))
    return fact(interfaces, node, Interfaces(have))


ADDRESSES = [addressed(f"node{i}", f"10.0.0.{i + 1}") for i in range(3)]
PROXY = {"https_proxy": "http://proxy:3128"}


def test_a_proxy_on_one_node() -> None:
    seen = facts(*ADDRESSES, proxied("node0"), proxied("node1", "localhost,127.0.0.1", **PROXY), proxied("node2"))
    found = one(judge(proxy_captures_peers, TENSORFLOW, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    assert "https_proxy=http://proxy:3128" in found.message and "localhost, 127.0.0.1" in found.message


@pytest.mark.parametrize(
    "no_proxy",
    ["*", "10.0.0.0/8", "10.0.0.1,10.0.0.3", "node0,node2", ".example,10.0.0.", "node0:443,node2.", "10.0.0.1,node2"],
)
def test_peers_that_some_reader_excludes(no_proxy: str) -> None:
    seen = facts(*ADDRESSES, proxied("node0"), proxied("node1", no_proxy, **PROXY), proxied("node2"))
    assert statuses(judge(proxy_captures_peers, TENSORFLOW, fleet(3), seen)) == {"pass"}


@pytest.mark.parametrize("no_proxy", ["node", "ode0", "10.0.1.0/24", "node00,xnode2", "0.0.1"])
def test_peers_that_no_reader_excludes(no_proxy: str) -> None:
    seen = facts(*ADDRESSES, proxied("node1", no_proxy, **PROXY))
    assert one(judge(proxy_captures_peers, TENSORFLOW, fleet(3), seen), Status.FAIL).nodes == ("node1",)


def test_a_peer_missing_from_no_proxy_is_named() -> None:
    seen = facts(*ADDRESSES, proxied("node1", "node0", **PROXY))
    assert "does not exclude node2" in one(judge(proxy_captures_peers, TENSORFLOW, fleet(3), seen), Status.FAIL).message


def test_grpc_ignores_upper_case_variables() -> None:
    seen = facts(*ADDRESSES, proxied("node1", HTTPS_PROXY="http://proxy:3128"))
    assert statuses(judge(proxy_captures_peers, TENSORFLOW, fleet(3), seen)) == {"pass"}
    assert one(judge(proxy_captures_peers, RAY, fleet(3), seen), Status.FAIL).severity is Severity.WARNING


def test_jobs_without_proxies_request_nothing() -> None:
    assert (
        plan(proxy_captures_peers, job(backend="nccl"), fleet(2))
        == []
        == plan(proxy_captures_peers, TENSORFLOW, local_fleet(2))
    )
    assert statuses(judge(proxy_captures_peers, job(), fleet(2), facts())) == {"not-applicable"}
    wanted = plan(proxy_captures_peers, TENSORFLOW, fleet(2))
    assert [request.context for request in wanted] == [True, False, True, False]
    blind = facts(*(fact(proxies, f"node{i}", TIMEOUT) for i in range(2)))
    assert statuses(judge(proxy_captures_peers, TENSORFLOW, fleet(2), blind)) == {"unknown"}


USUAL = {
    "first_port": 32768,
    "last_port": 60999,
    "listen_backlog": 4096,
    "connections": 120,
    "most_connections": 262144,
    "most_neighbours": 1024,
}
ALL = (ephemeral_ports_few, connection_tracking_full, neighbour_table_small, listen_backlog_small)


def kernel(node: str, **different: Any) -> FactRecord:
    return fact(kernel_network, node, KernelNetwork(**{**USUAL, **different}))


RANKS = job(processes_per_node=8, world_size=16, master_addr="node0", master_port=29500)


@pytest.mark.parametrize("check", [*ALL, fixed_port_taken_by_kernel], ids=lambda check: check.meta.id)
def test_usual_settings_pass(check: Check) -> None:
    assert statuses(judge(check, RANKS, fleet(2), facts(kernel("node0"), kernel("node1")))) == {"pass"}


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.meta.id)
def test_unknown_without_facts(check: Check) -> None:
    blind = facts(fact(kernel_network, "node0", TIMEOUT), fact(kernel_network, "node1", TIMEOUT))
    assert statuses(judge(check, RANKS, fleet(2), blind)) == {"unknown"}
    hidden = facts(*(fact(kernel_network, f"node{i}", KernelNetwork()) for i in range(2)))
    assert statuses(judge(check, RANKS, fleet(2), hidden)) <= {"unknown", "not-applicable"}
    assert plan(check, RANKS, local_fleet(2)) == []


def test_few_local_ports() -> None:
    tiny = facts(kernel("node0"), kernel("node1", first_port=50000, last_port=50009))
    found = one(judge(ephemeral_ports_few, RANKS, fleet(2), tiny), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "10 local ports" in found.message
    short = facts(kernel("node0", first_port=50000, last_port=50099), kernel("node1"))
    assert one(judge(ephemeral_ports_few, RANKS, fleet(2), short), Status.FAIL).severity is Severity.WARNING
    reserved = facts(kernel("node0", first_port=50000, last_port=50999, reserved_ports="50010-50999"), kernel("node1"))
    assert one(judge(ephemeral_ports_few, RANKS, fleet(2), reserved), Status.FAIL).severity is None


def test_a_fixed_port_that_the_kernel_assigns() -> None:
    fixed = job(master_addr="node0", master_port=45000)
    found = one(
        judge(fixed_port_taken_by_kernel, fixed, fleet(2), facts(kernel("node0"), kernel("node1"))), Status.FAIL
    )
    assert "45000" in found.message and fixed_port_taken_by_kernel.meta.severity is Severity.INFO
    kept = facts(kernel("node0", reserved_ports="45000"), kernel("node1", reserved_ports="8080,44000-46000"))
    assert statuses(judge(fixed_port_taken_by_kernel, fixed, fleet(2), kept)) == {"pass"}
    assert plan(fixed_port_taken_by_kernel, job(), fleet(2)) == []


def test_a_full_table_of_connections() -> None:
    full = facts(kernel("node0"), kernel("node1", connections=262144))
    found = one(judge(connection_tracking_full, RANKS, fleet(2), full), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None
    nearly = facts(kernel("node0", connections=250000), kernel("node1"))
    assert one(judge(connection_tracking_full, RANKS, fleet(2), nearly), Status.FAIL).severity is Severity.WARNING
    none = facts(kernel("node0", connections=None, most_connections=None))
    assert statuses(judge(connection_tracking_full, RANKS, fleet(2), none)) == {"not-applicable"}


def test_small_neighbour_tables_and_listen_backlogs() -> None:
    many = facts(*(kernel(f"node{i}", listen_backlog=128) for i in range(3)))
    assert one(judge(neighbour_table_small, job(), fleet(1200), many), Status.FAIL).nodes == ("node0", "node1", "node2")
    large = job(world_size=512)
    found = one(judge(listen_backlog_small, large, fleet(64), many), Status.FAIL)
    assert found.nodes == ("node0",) and "512 ranks" in found.message
