"""The servers and workers of a job, their nodes and settings: from files, and from the nodes' environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.job import Job, Launch, Scope, Span, Strength, Unresolved
from preflight.model.recording import FactRecord, Facts, Fleet
from preflight_checks.probes.environment import Environment, environment
from preflight_checks.probes.ports import FreePorts, free_ports
from preflight_checks.probes.server_place import ResolvedHost, ServerPlace, server_place
from preflight_checks.smoke.server_run import Process, processes
from tests.checks.check_builders import claim, fact, fleet, job, local_fleet

SERVERS = ("10.0.0.1:6170", "10.0.0.2:6170")


def processes_of(job_: Job, nodes: Fleet, *records: FactRecord) -> tuple[Process, ...]:
    found = processes(job_, nodes, Facts(records))
    assert not isinstance(found, str), found
    return found


def summary(processes: tuple[Process, ...]) -> list[str]:
    """Kind, node, index, endpoint of each."""
    return [f"{p.kind} {p.index} {p.node.name} {p.endpoint}".strip() for p in processes]


def launched(*lines: dict[str, Any]) -> Job:
    """A job with a launch line for each process."""
    launches, claims = [], []
    for number, values in enumerate(lines, start=1):
        span = Span("start.sh", number, 1, number, 20, "python train.py")
        launches.append(Launch(f"start.sh:{number}", "python", span))
        scope = Scope(f"start.sh:{number}")
        claims += [claim(name, value, scope=scope) for name, value in {"ps_mode": True, **values}.items()]
    return Job("train", launches=tuple(launches), claims=tuple(claims))


def server(endpoint: str, index: int | None, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"ps_role": "PSERVER", "ps_server_endpoints": SERVERS, "ps_current_endpoint": endpoint}
    return {**values, **({} if index is None else {"ps_index": index}), "ps_workers": 2, **more}


def trainer(index: int | Unresolved, **more: Any) -> dict[str, Any]:
    return {"ps_role": "TRAINER", "ps_server_endpoints": SERVERS, "ps_index": index, "ps_workers": 2, **more}


def places(**hosts: str) -> list[FactRecord]:
    """The facts about the nodes' own addresses: node -> address."""
    known = [*hosts.values()]
    return [
        fact(server_place, node, ServerPlace([ResolvedHost(host, [host], host == own) for host in known]))
        for node, own in hosts.items()
    ]


def test_lists_of_one_launcher_put_each_process_on_its_host() -> None:
    listed = job(
        ps_mode=True,
        ps_server_endpoints=("node0:6170", "node1:6170"),
        ps_worker_endpoints=("node0:6171", "node1:6171", "node2:6171"),
    )
    found = processes_of(listed, fleet(3))
    assert summary(found) == [
        "server 0 node0 node0:6170",
        "server 1 node1 node1:6170",
        "worker 0 node0",
        "worker 1 node1",
        "worker 2 node2",
    ]
    assert {(p.servers, p.workers) for p in found} == {(2, 3)}


def test_addresses_are_found_on_their_nodes() -> None:
    listed = job(ps_mode=True, ps_server_endpoints=SERVERS, ps_worker_endpoints=("10.0.0.3:1", "10.0.0.4:1"))
    known = places(node0="10.0.0.2", node1="10.0.0.1", node2="10.0.0.4", node3="10.0.0.3")
    assert [p.node.name for p in processes_of(listed, fleet(4), *known)] == ["node1", "node0", "node3", "node2"]
    assert [p.node.name for p in processes_of(listed, fleet(4))] == ["node0", "node1", "node2", "node3"]


def test_numbers_are_distributed_over_nodes_with_unique_ports() -> None:
    counted = job(ps_mode=True, ps_servers=2, ps_workers=4)
    found = processes_of(counted, fleet(2))
    assert summary(found) == [
        "server 0 node0 node0:6170",
        "server 1 node1 node1:6170",
        "worker 0 node0",
        "worker 1 node0",
        "worker 2 node1",
        "worker 3 node1",
    ]
    assert [
        p.endpoint for p in processes_of(job(ps_mode=True, ps_servers=2, ps_workers=1), fleet(1)) if p.endpoint
    ] == [
        "node0:6170",
        "node0:6171",
    ]


def test_each_process_gets_the_settings_of_its_launch_line() -> None:
    found = processes_of(
        launched(server(SERVERS[0], 0), server("10.0.0.9:6170", None), trainer(1), trainer(1, ps_workers=3)), fleet(4)
    )
    assert summary(found) == [
        "server 0 node0 10.0.0.1:6170",
        "server 1 node1 10.0.0.9:6170",
        "worker 1 node2",
        "worker 1 node3",
    ]
    assert sorted(p.workers for p in found) == [2, 2, 2, 3]
    assert {p.source for p in found} == {"start.sh:1", "start.sh:2", "start.sh:3", "start.sh:4"}


def test_an_unknown_role_stays_as_written() -> None:
    wrong = server(SERVERS[1], None, ps_role="SERVER")
    found = processes_of(launched(server(SERVERS[0], 0), wrong, trainer(0), trainer(1)), fleet(4))
    assert [(p.kind, p.role) for p in found][1] == ("server", "SERVER")


def test_a_list_in_another_order_stays_in_that_order() -> None:
    turned = trainer(1, ps_server_endpoints=SERVERS[::-1])
    found = processes_of(launched(server(SERVERS[0], 0), server(SERVERS[1], 1), trainer(0), turned), fleet(4))
    assert found[3].server_endpoints == SERVERS[::-1] and found[2].server_endpoints == SERVERS


def test_an_extra_launch_line_starts_an_extra_process() -> None:
    found = processes_of(
        launched(server(SERVERS[0], 0), server(SERVERS[1], 1), trainer(0), trainer(1), trainer(2)), fleet(4)
    )
    assert [p.index for p in found] == [0, 1, 0, 1, 2]


def test_an_old_cluster_has_a_server_and_a_trainer_on_every_host() -> None:
    old = job(
        ps_mode=True, cluster_hosts=("node0", "node1"), hosts=("node0", "node1"), ps_workers=2, ps_servers=2,
        pserver_port=7164,
    )  # fmt: skip
    assert summary(processes_of(old, fleet(2))) == [
        "server 0 node0 node0:7164",
        "server 1 node1 node1:7164",
        "worker 0 node0",
        "worker 1 node1",
    ]


def pod(node: str, **variables: str) -> FactRecord:
    return fact(environment, node, Environment(variables), params={"run_key": ""})


def test_nodes_with_their_own_roles() -> None:
    lists = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170", "PADDLE_TRAINERS_NUM": "2"}
    found = processes_of(
        job(ps_mode=True, ps_role=Unresolved("$TRAINING_ROLE is set by the caller")),
        fleet(4),
        pod("node0", TRAINING_ROLE="PSERVER", POD_IP="10.0.0.1", PADDLE_PORT="6170", **lists),
        pod("node1", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="1", **lists),
        pod("node2", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="", **{**lists, "PADDLE_TRAINERS_NUM": "3"}),
    )
    assert summary(found) == ["server 0 node0 10.0.0.1:6170", "worker 1 node1", "worker  node2"]
    assert [p.workers for p in found] == [2, 2, 3]
    assert found[2].source == "the environment of node2" and found[2].index == ""


def test_nodes_with_their_own_roles_get_what_the_script_sets_for_all() -> None:
    own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINERS_NUM": "7", "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170"}
    found = processes_of(
        job([claim("env.PADDLE_TRAINERS_NUM", "2")], ps_mode=True),
        fleet(2),
        pod("node0", PADDLE_TRAINER_ID="0", **own),
        pod("node1", PADDLE_TRAINER_ID="1", **own),
    )
    assert [(process.index, process.workers) for process in found] == [(0, 2), (1, 2)]


def test_every_endpoint_gets_a_port_if_nodes_share_a_machine() -> None:
    listed = job(ps_mode=True, ps_server_endpoints=SERVERS, ps_workers=2)
    found = processes_of(listed, local_fleet(4))
    assert found[0].server_endpoints == ("127.0.0.1:6170", "127.0.0.1:6171")
    assert [p.endpoint for p in found] == ["127.0.0.1:6170", "127.0.0.1:6171", "", ""]
    turned = launched(
        server(SERVERS[0], 0), server(SERVERS[1], 1), trainer(0), trainer(1, ps_server_endpoints=SERVERS[::-1])
    )
    assert processes_of(turned, local_fleet(4))[3].server_endpoints == ("127.0.0.1:6171", "127.0.0.1:6170")


def test_free_ports_are_used_if_the_files_name_none() -> None:
    def endpoints_of(job_: Job, *more: FactRecord, nodes: int = 4) -> list[int]:
        found = processes_of(job_, local_fleet(nodes), free, *more)
        assert {p.server_endpoints for p in found} == {tuple(p.endpoint for p in found if p.endpoint)}
        return [int(p.endpoint.rpartition(":")[2]) for p in found if p.endpoint]

    free = fact(free_ports, "local0", FreePorts([20001, 6170, 20003]), params={"count": 32, "job": "train"})
    assert endpoints_of(job(ps_mode=True, ps_servers=2, ps_workers=2)) == [20001, 6170]
    assert endpoints_of(job(ps_mode=True, ps_servers=1, ps_workers=1), nodes=1) == [20001]
    assert endpoints_of(job(ps_mode=True, ps_server_endpoints=("a", "b:6170", "c:6170"), ps_workers=1)) == [
        20001,
        6170,
        20003,
    ]
    assert endpoints_of(job(ps_mode=True, pserver_hosts=("a", "b"), pserver_port=7164, ps_workers=2)) == [7164, 20001]
    old = replace(claim("pserver_port", 20134, "cluster_train/paddle.py"), strength=Strength.DEFAULT)
    assert endpoints_of(job([old], ps_mode=True, pserver_hosts=("a", "b"), ps_workers=2)) == [20001, 6170]
    told_by_node = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6171", "PADDLE_TRAINERS_NUM": "1"}
    one = pod("local0", TRAINING_ROLE="PSERVER", POD_IP="10.0.0.1", PADDLE_PORT="6171", **told_by_node)
    two = pod("local1", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0", **told_by_node)
    assert endpoints_of(job(ps_mode=True, ps_role=Unresolved("$TRAINING_ROLE is set by the caller")), one, two) == [
        6171
    ]


@pytest.mark.parametrize("known", [{}, {"ps_servers": 2}, {"ps_workers": 2}])
def test_unknown_numbers_have_a_reason(known: dict[str, int]) -> None:
    found = processes(job(ps_mode=True, **known), fleet(2), Facts())
    assert isinstance(found, str) and "nothing states how many" in found
