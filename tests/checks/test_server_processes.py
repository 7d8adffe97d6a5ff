"""Which servers and workers are started where, and what each is told: from files, and from the nodes themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.job import Job, Launch, Scope, Span, Strength, Unresolved
from preflight.recording import FactRecord, Facts, Fleet
from preflight_checks.probes.environment import Environment, environment
from preflight_checks.probes.free_ports import FreePorts, free_ports
from preflight_checks.probes.server_place import HostHere, ServerPlace, server_place
from preflight_checks.smoke.server_processes import Process, processes

from .build import claim, fact, fleet, job, stand_ins

SERVERS = ("10.0.0.1:6170", "10.0.0.2:6170")


def told(job_: Job, nodes: Fleet, *records: FactRecord) -> tuple[Process, ...]:
    found = processes(job_, nodes, Facts(records))
    assert not isinstance(found, str), found
    return found


def spelled(found: tuple[Process, ...]) -> list[str]:
    """Kind, node, index, endpoint of each."""
    return [f"{p.kind} {p.index} {p.node.name} {p.endpoint}".strip() for p in found]


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
    """What the nodes know as their own: node -> address."""
    known = [*hosts.values()]
    return [
        fact(server_place, node, ServerPlace([HostHere(host, [host], host == own) for host in known]))
        for node, own in hosts.items()
    ]


def test_lists_of_one_launcher_put_each_process_on_its_host() -> None:
    listed = job(
        ps_mode=True,
        ps_server_endpoints=("node0:6170", "node1:6170"),
        ps_worker_endpoints=("node0:6171", "node1:6171", "node2:6171"),
    )
    found = told(listed, fleet(3))
    assert spelled(found) == [
        "server 0 node0 node0:6170",
        "server 1 node1 node1:6170",
        "worker 0 node0",
        "worker 1 node1",
        "worker 2 node2",
    ]
    assert {(p.servers, p.workers) for p in found} == {(2, 3)}


def test_addresses_are_found_by_the_nodes_that_have_them() -> None:
    listed = job(ps_mode=True, ps_server_endpoints=SERVERS, ps_worker_endpoints=("10.0.0.3:1", "10.0.0.4:1"))
    known = places(node0="10.0.0.2", node1="10.0.0.1", node2="10.0.0.4", node3="10.0.0.3")
    assert [p.node.name for p in told(listed, fleet(4), *known)] == ["node1", "node0", "node3", "node2"]
    assert [p.node.name for p in told(listed, fleet(4))] == ["node0", "node1", "node2", "node3"]


def test_numbers_alone_are_dealt_over_the_nodes_with_ports_of_their_own() -> None:
    counted = job(ps_mode=True, ps_servers=2, ps_workers=4)
    found = told(counted, fleet(2))
    assert spelled(found) == [
        "server 0 node0 node0:6170",
        "server 1 node1 node1:6170",
        "worker 0 node0",
        "worker 1 node0",
        "worker 2 node1",
        "worker 3 node1",
    ]
    assert [p.endpoint for p in told(job(ps_mode=True, ps_servers=2, ps_workers=1), fleet(1)) if p.endpoint] == [
        "node0:6170",
        "node0:6171",
    ]


def test_each_process_is_told_what_its_own_launch_line_says() -> None:
    found = told(
        launched(server(SERVERS[0], 0), server("10.0.0.9:6170", None), trainer(1), trainer(1, ps_workers=3)), fleet(4)
    )
    assert spelled(found) == [
        "server 0 node0 10.0.0.1:6170",
        "server 1 node1 10.0.0.9:6170",
        "worker 1 node2",
        "worker 1 node3",
    ]
    assert sorted(p.workers for p in found) == [2, 2, 2, 3]
    assert {p.source for p in found} == {"start.sh:1", "start.sh:2", "start.sh:3", "start.sh:4"}


def test_a_role_that_does_not_exist_stays_as_it_is_spelled() -> None:
    wrong = server(SERVERS[1], None, ps_role="SERVER")
    found = told(launched(server(SERVERS[0], 0), wrong, trainer(0), trainer(1)), fleet(4))
    assert [(p.kind, p.role) for p in found][1] == ("server", "SERVER")


def test_a_list_in_another_order_stays_in_that_order() -> None:
    turned = trainer(1, ps_server_endpoints=SERVERS[::-1])
    found = told(launched(server(SERVERS[0], 0), server(SERVERS[1], 1), trainer(0), turned), fleet(4))
    assert found[3].server_endpoints == SERVERS[::-1] and found[2].server_endpoints == SERVERS


def test_one_launch_more_than_there_are_places_starts_one_too_many() -> None:
    found = told(launched(server(SERVERS[0], 0), server(SERVERS[1], 1), trainer(0), trainer(1), trainer(2)), fleet(4))
    assert [p.index for p in found] == [0, 1, 0, 1, 2]


def test_an_old_cluster_has_a_server_and_a_trainer_on_every_host() -> None:
    old = job(
        ps_mode=True, cluster_hosts=("node0", "node1"), hosts=("node0", "node1"), ps_workers=2, ps_servers=2,
        pserver_port=7164,
    )  # fmt: skip
    assert spelled(told(old, fleet(2))) == [
        "server 0 node0 node0:7164",
        "server 1 node1 node1:7164",
        "worker 0 node0",
        "worker 1 node1",
    ]


def pod(node: str, **variables: str) -> FactRecord:
    return fact(environment, node, Environment(variables), params={"run_key": ""})


def test_nodes_that_are_given_roles_of_their_own_say_what_they_are() -> None:
    lists = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170", "PADDLE_TRAINERS_NUM": "2"}
    found = told(
        job(ps_mode=True, ps_role=Unresolved("$TRAINING_ROLE comes from outside")),
        fleet(4),
        pod("node0", TRAINING_ROLE="PSERVER", POD_IP="10.0.0.1", PADDLE_PORT="6170", **lists),
        pod("node1", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="1", **lists),
        pod("node2", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="", **{**lists, "PADDLE_TRAINERS_NUM": "3"}),
    )
    assert spelled(found) == ["server 0 node0 10.0.0.1:6170", "worker 1 node1", "worker  node2"]
    assert [p.workers for p in found] == [2, 2, 3]
    assert found[2].source == "the environment of node2" and found[2].index == ""


def test_one_machine_that_plays_all_nodes_gets_a_port_for_every_endpoint() -> None:
    listed = job(ps_mode=True, ps_server_endpoints=SERVERS, ps_workers=2)
    found = told(listed, stand_ins(4))
    assert found[0].server_endpoints == ("127.0.0.1:6170", "127.0.0.1:6171")
    assert [p.endpoint for p in found] == ["127.0.0.1:6170", "127.0.0.1:6171", "", ""]
    turned = launched(
        server(SERVERS[0], 0), server(SERVERS[1], 1), trainer(0), trainer(1, ps_server_endpoints=SERVERS[::-1])
    )
    assert told(turned, stand_ins(4))[3].server_endpoints == ("127.0.0.1:6171", "127.0.0.1:6170")


def test_one_machine_that_plays_all_nodes_takes_free_ports_where_the_files_name_none() -> None:
    def ends(job_: Job, *more: FactRecord, nodes: int = 4) -> list[int]:
        found = told(job_, stand_ins(nodes), free, *more)
        assert {p.server_endpoints for p in found} == {tuple(p.endpoint for p in found if p.endpoint)}
        return [int(p.endpoint.rpartition(":")[2]) for p in found if p.endpoint]

    free = fact(free_ports, "local0", FreePorts([20001, 6170, 20003]), params={"count": 32, "job": "train"})
    assert ends(job(ps_mode=True, ps_servers=2, ps_workers=2)) == [20001, 6170]
    assert ends(job(ps_mode=True, ps_servers=1, ps_workers=1), nodes=1) == [20001]
    assert ends(job(ps_mode=True, ps_server_endpoints=("a", "b:6170", "c:6170"), ps_workers=1)) == [20001, 6170, 20003]
    assert ends(job(ps_mode=True, pserver_hosts=("a", "b"), pserver_port=7164, ps_workers=2)) == [7164, 20001]
    old = replace(claim("pserver_port", 20134, "cluster_train/paddle.py"), strength=Strength.DEFAULT)
    assert ends(job([old], ps_mode=True, pserver_hosts=("a", "b"), ps_workers=2)) == [20001, 6170]
    told_by_node = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6171", "PADDLE_TRAINERS_NUM": "1"}
    one = pod("local0", TRAINING_ROLE="PSERVER", POD_IP="10.0.0.1", PADDLE_PORT="6171", **told_by_node)
    two = pod("local1", TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0", **told_by_node)
    assert ends(job(ps_mode=True, ps_role=Unresolved("$TRAINING_ROLE comes from outside")), one, two) == [6171]


@pytest.mark.parametrize("known", [{}, {"ps_servers": 2}, {"ps_workers": 2}])
def test_where_nothing_says_how_many_there_are_a_reason_is_given(known: dict[str, int]) -> None:
    found = processes(job(ps_mode=True, **known), fleet(2), Facts())
    assert isinstance(found, str) and "nothing says how many" in found
