"""RDMA writes compared with the rate of the slower port: who is blamed, and what stays unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight.plugins.authoring import Verdict
from preflight_checks.links.rdma_writes import plan_rdma_speed, rdma_writes_slow
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.pci import Pci, pci
from preflight_checks.probes.rdma import Gid, RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.probes.rdma_speed import RailSpeed, RdmaSpeeds, rdma_speed
from tests.checks.check_builders import fact, facts, fleet, job, judge, local_fleet, one, statuses

NCCL = job(backend="nccl", master_addr="node0", master_port=29500)
UP = RdmaPort(1, "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)", "InfiniBand")


def hcas(node: str, *ports: RdmaPort) -> FactRecord:
    listed = [
        RdmaDevice(f"mlx5_{index}", "mlx5_core", pci=f"0000:{index}a:00.0", ports=[port])
        for index, port in enumerate(ports or (UP, UP))
    ]
    return fact(rdma, node, RdmaDevices(listed))


def speeds(node: str, peer: str, *rates: float | None, problem: str = "", left_out: int = 0) -> FactRecord:
    rails = [
        RailSpeed(f"mlx5_{index}", 1, f"mlx5_{index}", 1, rate, 1.1 if rate else None, "" if rate else problem)
        for index, rate in enumerate(rates)
    ]
    value = RdmaSpeeds(peer, "10.0.0.2", rails, left_out)
    return fact(rdma_speed, node, value, params={"peer": peer}, peers=(peer,), required=False)


def verdicts(*records: FactRecord, count: int = 4) -> list[Verdict]:
    every = [hcas(f"node{index}") for index in range(count)]
    return judge(rdma_writes_slow, NCCL, fleet(count), facts(*every, *records))


def ring(slow: Sequence[tuple[str, str]] = (), usual: float = 390.0, low: float = 41.0) -> list[FactRecord]:
    """Four nodes in a ring; on the first rail the named pairs are slow."""
    pairs = [("node0", "node1"), ("node1", "node2"), ("node2", "node3"), ("node3", "node0")]
    return [speeds(a, b, low if (a, b) in slow else usual, usual) for a, b in pairs]


def test_fast_rails_pass_with_rates_and_latency() -> None:
    found = one(verdicts(*ring()), Status.PASS)
    assert "RDMA writes over 8 pairs of ports: 390 Gbit/s to 390 Gbit/s, 1.1 to 1.1 us" in found.subject


def test_a_port_that_is_slow_with_both_partners_is_named_alone() -> None:
    found = one(verdicts(*ring([("node0", "node1"), ("node1", "node2")])), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity in (None, Severity.WARNING)
    assert "node1 mlx5_0:1 with every partner" in found.message
    assert "reach 41 Gbit/s; the slower port reports 400 Gbit/s, expected at least 300 Gbit/s" in found.message
    assert "2 of 8 pairs" in found.message and "ib_write_bw -d mlx5_0" in str(found.evidence[0])


def test_one_slow_pair_names_both_ends() -> None:
    found = one(verdicts(*ring([("node2", "node3")])), Status.FAIL)
    assert found.nodes == ("node2", "node3")


def test_all_equally_slow_is_found() -> None:
    found = one(verdicts(*ring(usual=40.0, low=40.0)), Status.FAIL)
    assert found.nodes == ("node0", "node1", "node2", "node3") and "all pairs of ports" in found.message


def test_the_slower_port_is_the_measure() -> None:
    slower = replace(UP, rate_gbps=100.0, rate_text="100 Gb/sec (4X EDR)")
    records = facts(hcas("node0"), hcas("node1", slower, slower), speeds("node0", "node1", 97.0, 96.0))
    assert statuses(judge(rdma_writes_slow, NCCL, fleet(2), records)) == {"pass"}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (speeds("node0", "node1", None, None, problem="the peer: `ib_write_bw` was not found"), "was not found"),
        (speeds("node0", "node1", 390.0, left_out=3), "no time was left for 3 pairs of ports"),
        (
            fact(rdma_speed, "node0", Unavailable("missing", "`ib_write_bw` was not found"), peers=("node1",)),
            "`ib_write_bw` was not found",
        ),
    ],
)
def test_what_was_not_measured_is_unknown(record: FactRecord, reason: str) -> None:
    found = [item for item in verdicts(record) if item.status is Status.UNKNOWN]
    assert found and reason in found[0].message and not found[0].required


def test_ports_without_a_rate_are_unknown() -> None:
    blank = replace(UP, rate_gbps=None, rate_text="")
    records = facts(hcas("node0", blank), hcas("node1", blank), speeds("node0", "node1", 4.0))
    found = one(judge(rdma_writes_slow, NCCL, fleet(2), records), Status.UNKNOWN)
    assert "the rate of a port is unknown" in found.message


def test_evidence_names_the_memory_node_of_the_card() -> None:
    place = fact(pci, "node1", Pci(["0000:10:00.0"], ["0000:0a:00.0"], numa={"0000:0a:00.0": 1}))
    found = one(verdicts(*ring([("node0", "node1")]), place), Status.FAIL)
    assert "mlx5_0:1 of node1 is on memory node 1" in found.evidence[0].observed


def test_without_rdma_or_ports_it_is_not_applicable() -> None:
    assert statuses(judge(rdma_writes_slow, job(backend="gloo"), fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(rdma_writes_slow, NCCL, fleet(2), facts())) == {"not-applicable"}


def test_each_pair_is_asked_for_its_ports_of_one_kind() -> None:
    def card(number: int) -> FactRecord:
        have = Interface("eth0", True, True, False, [Address(f"10.0.0.{number}", 24)], 1500, 25000, "physical")
        return fact(interfaces, f"node{number}", Interfaces([have]))

    roce = replace(UP, link_layer="Ethernet", gids=[Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", 2, "eth0")])
    seen = facts(*(card(number) for number in range(3)), hcas("node0"), hcas("node1"), hcas("node2", roce, UP))
    asked = [r for r in plan_rdma_speed(NCCL, fleet(3), seen) if r.probe.endswith("rdma_speed")]
    rails = {(r.node, *r.peers): r.params["rails"] for r in asked}
    for (a, b), found in rails.items():
        devices = {rail[0] for rail in found}
        assert devices == ({"mlx5_1"} if "node2" in (a, b) else {"mlx5_0", "mlx5_1"})
    assert len(rails) >= 2 and all(r.exclusive and r.listen for r in asked)
    assert not list(plan_rdma_speed(NCCL, local_fleet(2), seen))
    assert not list(plan_rdma_speed(job(backend="gloo"), fleet(3), seen))
    both = facts(*(card(number) for number in range(2)), hcas("node0", roce), hcas("node1", roce))
    (request,) = (r for r in plan_rdma_speed(NCCL, fleet(2), both) if r.probe.endswith("rdma_speed"))
    assert request.params["rails"] == [["mlx5_0", 1, 3, "mlx5_0", 1, 3]]
