"""Source addresses of connections: different return paths and address translation are hints."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Status
from preflight.model.recording import Facts
from preflight_checks.links.dial_requests import FREE
from preflight_checks.links.reachability import return_path_differs
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.links import Dialled, Target, dial
from tests.checks.check_builders import fact, facts, fleet, job, judge, local_fleet, one, statuses

JOB = job(backend="gloo", master_addr="node0", master_port=29500)


def network(**changes: dict[str, str]) -> Facts:
    """Three nodes with two networks; `changes` apply to the connections that a node opens."""
    records = []
    for i in range(3):
        node = f"node{i}"
        cards = [
            Interface("eth0", True, True, False, [Address(f"10.77.0.{i}", 16)], 1500),
            Interface("eth1", True, True, False, [Address(f"10.78.0.{i}", 16)], 1500),
        ]
        records.append(fact(interfaces, node, Interfaces(cards)))
        targets = [
            replace(
                Target(f"node{j}", FREE, f"10.77.0.{j}", 0, "ok", f"10.77.0.{j}"),
                **{"source": f"10.77.0.{i}", "seen_as": f"10.77.0.{i}", **changes.get(node, {})},
            )
            for j in range(3)
            if j != i
        ]
        records.append(fact(dial, node, Dialled(targets), peers=tuple(t.peer for t in targets)))
    return facts(*records)


def test_connections_from_the_dialled_network_pass() -> None:
    assert statuses(judge(return_path_differs, JOB, fleet(3), network())) == {"pass"}


def test_a_different_return_path_names_node_and_addresses() -> None:
    seen = network(node2={"source": "10.78.0.2", "seen_as": "10.78.0.2"})
    found = one(judge(return_path_differs, JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "come from 10.78.0.2 (eth1), while the others connect to it at 10.77.0.2 (eth0)" in found.message


def test_translated_addresses_are_reported() -> None:
    found = one(judge(return_path_differs, JOB, fleet(3), network(node1={"seen_as": "192.0.2.9"})), Status.FAIL)
    assert found.nodes == ("node1",) and "192.0.2.9" in found.message


def test_unknown_paths_are_not_differences() -> None:
    seen = network(node2={"source": "10.99.0.2", "seen_as": ""})
    assert statuses(judge(return_path_differs, JOB, fleet(3), seen)) == {"pass"}
    bare = facts(*(record for record in network(node1={"seen_as": "192.0.2.9"}).records if record.request.peers))
    assert statuses(judge(return_path_differs, JOB, fleet(3), bare)) == {"pass"}
    assert statuses(judge(return_path_differs, JOB, fleet(3), facts())) == {"unknown"}
    assert statuses(judge(return_path_differs, JOB, fleet(1), facts())) == {"not-applicable"}
    assert statuses(judge(return_path_differs, JOB, local_fleet(3), facts())) == {"not-applicable"}
