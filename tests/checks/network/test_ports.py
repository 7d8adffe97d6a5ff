"""Ports the job will bind."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Status
from preflight.model.job import Job, Strength
from preflight.model.recording import FactRecord, Fleet
from preflight.model.requests import probe_name
from preflight_checks.network.kernel_network import port_in_use
from preflight_checks.probes.ports import OTHER_RUN, Holder, PortState, bindable, free_ports
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
    assert found.required and found.nodes == ("node0",) and "another run of preflight holds" in found.message
