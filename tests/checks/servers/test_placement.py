"""The nodes of parameter servers, and their resources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Claim, Job
from preflight.model.recording import FactRecord
from preflight_checks.probes.environment import Environment, ResolvedHost, ServerPlace, environment, server_place
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.servers import paddle_without_parameter_server as check
from preflight_checks.servers import (
    server_cores_too_few,
    server_memory_too_small,
    server_network_too_slow,
    server_port_ephemeral,
    servers_beside_some_trainers,
    servers_on_few_nodes,
    shares,
)
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
from tests.checks.check_builders import job as built

ALL = (
    servers_on_few_nodes,
    servers_beside_some_trainers,
    server_memory_too_small,
    server_cores_too_few,
    server_network_too_slow,
    server_port_ephemeral,
)
GIB = 2**30


def placement_job(servers: str = "a:6170,b:6170", workers: str = "c:6171,d:6171", *claims: Claim) -> Job:
    return built(
        claims,
        ps_mode=True,
        ps_server_endpoints=tuple(servers.split(",")),
        ps_worker_endpoints=tuple(workers.split(",")),
    )


def node(index: int, *own: str, speed: int | None = None, **more: Any) -> FactRecord:
    """A node that has the addresses of these hosts, 64 GiB, 8 cores and the usual range of ports."""
    hosts = [ResolvedHost(host, [f"10.0.0.{ord(host[0])}"], host in own, "", speed) for host in "abcd"]
    values: dict[str, Any] = {
        "memory_bytes": 64 * GIB,
        "memory_free_bytes": 60 * GIB,
        "cores": 8.0,
        "first_ephemeral_port": 32768,
        "last_ephemeral_port": 60999,
    }
    return fact(server_place, f"node{index}", ServerPlace(hosts, **{**values, **more}))


SPREAD = (node(0, "a"), node(1, "b"), node(2, "c"), node(3, "d"))


def table(rows: int, width: int, line: int = 5, sparse: bool = True) -> tuple[Claim, ...]:
    made = claim("embedding_shape", (str(rows), str(width)))
    made = replace(made, span=replace(LAUNCH.span, path="train.py", line=line))
    return (made, replace(claim("embedding_sparse", True), because=(made,))) if sparse else (made,)


def test_requests_to_nodes() -> None:
    asked = [r for r in plan(servers_on_few_nodes, placement_job(), fleet(4)) if "server_place" in r.probe]
    assert [r.node for r in asked] == [f"node{i}" for i in range(4)]
    assert asked[0].params == {"hosts": ["a", "b", "c", "d"]} and not asked[0].context
    for no in (built(master_port=1), placement_job()):
        fleets = (fleet(1), local_fleet(4)) if no.about("ps_mode") else (fleet(4),)
        for few in fleets:
            assert plan(servers_on_few_nodes, no, few) == []
            assert statuses(judge(servers_on_few_nodes, no, few, facts())) == {"not-applicable"}


def test_a_good_layout_passes() -> None:
    for each in ALL:
        said = judge(each, placement_job(), fleet(4), facts(*SPREAD))
        assert "fail" not in statuses(said) and "unknown" not in statuses(said), (each.meta.id, said)
        blind = facts(*(fact(server_place, f"node{i}", TIMEOUT) for i in range(4)))
        assert statuses(judge(each, placement_job(), fleet(4), blind)) == {"unknown"}


def test_two_names_of_one_machine() -> None:
    seen = facts(node(0, "a", "b"), node(1), node(2, "c"), node(3, "d"))
    found = one(judge(servers_on_few_nodes, placement_job(), fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "a:6170, b:6170" in found.message and "on 2 nodes" in found.message


def test_one_written_host_is_left_to_lint() -> None:
    seen = facts(node(0, "a"), node(1), node(2, "c"), node(3, "d"))
    assert statuses(judge(servers_on_few_nodes, placement_job("a:6170,a:6171"), fleet(4), seen)) == {"pass"}


def test_a_node_with_more_servers_than_others() -> None:
    lopsided = placement_job("a:6170,a:6171,a:6172,b:6170")
    found = one(judge(servers_on_few_nodes, lopsided, fleet(4), facts(*SPREAD)), Status.FAIL)
    assert found.nodes == ("node0",) and "node0: 3, node1: 1" in found.message


def test_a_host_that_no_node_has_is_unknown() -> None:
    seen = facts(node(0, "a"), node(1), node(2, "c"), node(3, "d"))
    assert (
        "address belongs to no node"
        in one(judge(servers_on_few_nodes, placement_job(), fleet(4), seen), Status.UNKNOWN).message
    )


def test_servers_named_only_by_node_environments() -> None:
    from_nodes = built(ps_mode=True)
    lists = {"PADDLE_PSERVERS_IP_PORT_LIST": "a:6170,b:6171", "PADDLE_TRAINER_ENDPOINTS": "node2:6171,node3:6171"}
    told = [fact(environment, f"node{i}", Environment(lists)) for i in range(4)]
    seen = facts(node(0, "a", "b"), *told)
    found = one(judge(servers_on_few_nodes, from_nodes, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node0",)
    silent = facts(node(0, "a"), fact(environment, "node0", Environment()))
    assert "list the servers" in one(judge(servers_on_few_nodes, from_nodes, fleet(4), silent), Status.UNKNOWN).message


def test_servers_beside_only_some_trainers() -> None:
    beside = placement_job("a:6170,b:6170", "a:6171,b:6171,c:6171,d:6171")
    found = one(judge(servers_beside_some_trainers, beside, fleet(4), facts(*SPREAD)), Status.FAIL)
    assert found.nodes == ("node0", "node1")
    alike = placement_job("a:6170,b:6170", "a:6171,b:6171")
    assert statuses(judge(servers_beside_some_trainers, alike, fleet(4), facts(*SPREAD))) == {"pass"}


def test_held_parameters_of_servers() -> None:
    held = shares(placement_job("a:1,b:1", "c:1", *table(1001, 8), claim("optimizer", "Adam")), 2)
    assert held is not None and held.held == (501 * 8 * 12, 500 * 8 * 12) and held.exchanged_bytes == (0, 0)
    whole = shares(placement_job("a:1,b:1", "c:1", *table(20000, 8, sparse=False), claim("slice_var_up", False)), 2)
    assert whole is not None and whole.held == whole.exchanged_bytes == (640000, 0)
    assert shares(placement_job(), 2) is None
    assert shares(placement_job("a:1", "c:1", claim("embedding_shape", ("-1", "8"))), 2) is None
    assert shares(placement_job("a:1", "c:1", claim("embedding_shape", (str(10**30), "8"))), 2) is None


def test_memory_of_servers() -> None:
    large = placement_job("a:6170,b:6170", "c:6171,d:6171", *table(10**9, 64), claim("optimizer", "Adam"))
    found = one(judge(server_memory_too_small, large, fleet(4), facts(*SPREAD)), Status.FAIL)
    assert found.nodes == ("node0", "node1") and found.severity is None
    assert "357.6 GiB" in found.message and "64.0 GiB" in found.message
    tight = placement_job("a:6170,b:6170", "c:6171,d:6171", *table(5 * 10**8, 64))
    seen = facts(node(0, "a", memory_free_bytes=10 * GIB), *SPREAD[1:])
    warned = one(judge(server_memory_too_small, tight, fleet(4), seen), Status.FAIL)
    assert warned.nodes == ("node0",) and warned.severity is Severity.WARNING and "10.0 GiB free" in warned.message
    dark = facts(node(0, "a", memory_bytes=None), *SPREAD[1:])
    assert statuses(judge(server_memory_too_small, tight, fleet(4), dark)) == {"unknown", "pass"}
    assert statuses(judge(server_memory_too_small, placement_job(), fleet(4), facts(*SPREAD))) == {"not-applicable"}


def test_cores_of_servers() -> None:
    crowded = placement_job("a:1,a:2,b:1", "a:3,b:3")
    seen = facts(node(0, "a", cores=2.0), node(1, "b", cores=2.0), *SPREAD[2:])
    found = one(judge(server_cores_too_few, crowded, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "2 cores" in found.message and "3 servers and trainers" in found.message


def test_network_of_servers() -> None:
    dense = placement_job("a:6170,b:6170", "c:6171,d:6171", *table(4 * 10**6, 64, sparse=False))
    slow = facts(node(0, "a", speed=1000), node(1, "b", speed=1000), *SPREAD[2:])
    found = one(judge(server_network_too_slow, dense, fleet(4), slow), Status.FAIL)
    assert found.nodes == ("node0", "node1") and "1000 Mbit/s" in found.message and "8.2 s" in found.message
    fast = facts(node(0, "a", speed=100_000), node(1, "b", speed=100_000), *SPREAD[2:])
    assert statuses(judge(server_network_too_slow, dense, fleet(4), fast)) == {"pass"}
    assert "unknown" in statuses(judge(server_network_too_slow, dense, fleet(4), facts(*SPREAD)))


@pytest.mark.parametrize(
    ("port", "reserved", "status"), [(36001, "", "fail"), (36001, "36000-36010", "pass"), (6170, "", "pass")]
)
def test_ports_of_servers(port: int, reserved: str, status: str) -> None:
    seen = [node(i, "abcd"[i], reserved_ports=reserved) for i in range(4)]
    said = judge(server_port_ephemeral, placement_job(f"a:{port},b:6170"), fleet(4), facts(*seen))
    assert statuses(said) == {status}
    if status == "fail":
        assert one(said, Status.FAIL).nodes == ("node0",) and "32768" in one(said, Status.FAIL).remedy


# Releases of Paddle whose wheels have no parameter server.


SERVERS = job(ps_mode=True)


def paddle_at(node: str, version: str) -> FactRecord:
    versions = {"paddlepaddle": version} if version else {}
    return fact(packages, node, Packages("3.11.2", "/usr/bin/python3", versions), context=True)


@pytest.mark.parametrize("version", ["3.1.1", "3.3.1"])
def test_a_wheel_without_servers_names_its_nodes(version: str) -> None:
    seen = facts(paddle_at("node0", "2.6.2"), paddle_at("node1", version))
    verdict = one(judge(check, SERVERS, fleet(2), seen), Status.FAIL)
    assert verdict.nodes == ("node1",)
    assert f"paddlepaddle {version}" in verdict.message and "3.1.1" in verdict.message
    assert verdict.severity in (None, Severity.ERROR)


@pytest.mark.parametrize("version", ["2.6.2", "3.0.0", "3.1.0", "3.2.0+servers", "own-build"])
def test_older_wheels_and_custom_builds_pass(version: str) -> None:
    assert statuses(judge(check, SERVERS, fleet(1), facts(paddle_at("node0", version)))) == {"pass"}


def test_missing_facts_are_unknown_and_other_jobs_request_nothing() -> None:
    assert statuses(judge(check, SERVERS, fleet(1), facts(fact(packages, "node0", TIMEOUT, context=True)))) == {
        "unknown"
    }
    assert statuses(judge(check, SERVERS, fleet(1), facts(paddle_at("node0", "")))) == {"not-applicable"}
    assert plan(check, job(), fleet(1)) == []
    assert statuses(judge(check, job(), fleet(1), facts(paddle_at("node0", "3.3.1")))) == {"not-applicable"}
    assert len(plan(check, SERVERS, fleet(2))) == 2
