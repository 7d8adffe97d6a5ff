"""All-reduce over NCCL compared with NVSwitch in a node and with the ports between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.interfaces import Address, Interface, Interfaces, interfaces
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.smoke.collective_speed import collectives_below_fabric
from reference_trainer.collective.bandwidth import CollectiveTiming, Sweep
from reference_trainer.collective.gpu_speed import GpuReport
from reference_trainer.collective.rank import RankReport, rank
from reference_trainer.common.used_transport import NcclConnections, Transport
from tests.checks.check_builders import fact, facts, fleet, job, judge, one, statuses

JOB = job(backend="nccl", master_addr="node0", master_port=29500)
LARGE = 1 << 28
OVER_IB = NcclConnections("2.28.9", "IB", [f"mlx5_{index}:1" for index in range(8)], {"NET/IB": 16}, True)
OVER_SOCKETS = NcclConnections("2.28.9", "Socket", ["eth0"], {"NET/Socket": 4}, False)
WITHIN = NcclConnections("2.28.9", "", [], {"P2P/CUMEM": 16}, None)


def run_records(
    gbps: float,
    *,
    nodes: int,
    local: int,
    nccl: NcclConnections,
    links: int | None = 18,
    message: int = LARGE,
    model: str = "NVIDIA H200",
    backend: str = "nccl",
    shared: bool = False,
) -> list[FactRecord]:
    """Ranks whose all-reduce reached this many GB/s."""
    records = []
    for number in range(nodes * local):
        node = f"node{number // local}"
        place = 0 if shared else number % local
        gpu = GpuReport(model, f"0000:{place:02x}:00.0", switch_links=links)
        sweep = Sweep([CollectiveTiming("all_reduce", message, [0.001] * 3, gbps * 1e9)], cores=8)
        device = f"cuda:{place} {model}"
        report = RankReport(number, nodes * local, node, backend, device, "torch 2.11", transport=Transport(nccl))
        report = replace(report, sweep=sweep, gpu=gpu)
        params = {"rank": number, "world_size": nodes * local}
        request = Request(probe_name(rank), node, params, context=True, group="smoke train")
        records.append(FactRecord(request, asdict(report)))
    return records


def hcas(node: str, rate: float | None = 400.0, count: int = 8) -> FactRecord:
    ports = [RdmaPort(1, "ACTIVE", "LinkUp", rate, f"{rate} Gb/sec", "InfiniBand")]
    return fact(
        rdma, node, RdmaDevices([RdmaDevice(f"mlx5_{index}", "mlx5_core", ports=ports) for index in range(count)])
    )


def card(node: str, speed: int | None, kind: str = "physical") -> FactRecord:
    have = [Interface("eth0", True, True, False, [Address("10.0.0.1", 24)], 1500, speed, kind)]
    return fact(interfaces, node, Interfaces(have))


def verdicts(records: Sequence[FactRecord], *more: FactRecord, nodes: int) -> list[Verdict]:
    return judge(collectives_below_fabric, JOB, fleet(nodes), facts(*more, *records))


def in_node(gbps: float, **more: Any) -> list[Verdict]:
    return verdicts(run_records(gbps, nodes=1, local=8, nccl=WITHIN, **more), nodes=1)


def test_a_healthy_node_passes_and_a_slow_one_is_a_finding() -> None:
    assert "moves 300 GB/s over NVSwitch, peak 450 GB/s" in one(in_node(300.0), Status.PASS).subject
    found = one(in_node(12.0), Status.FAIL)
    assert "moves 12 GB/s over NVSwitch, and node0 GPU 0 (0000:00:00.0) (18 links) can carry 450 GB/s" in found.message
    assert "expected at least 112 GB/s (25%)" in found.message
    assert collectives_below_fabric.meta.severity is Severity.WARNING


@pytest.mark.parametrize("more", [{"links": 0}, {"links": None}, {"model": "NVIDIA Quantum 9"}, {"shared": True}])
def test_a_node_without_a_known_nvswitch_is_unknown(more: dict[str, Any]) -> None:
    assert one(in_node(12.0, **more), Status.UNKNOWN)


def test_all_nodes_alike_far_below_their_ports_are_found() -> None:
    ports = [hcas("node0"), hcas("node1")]
    slow = verdicts(run_records(9.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
    found = one(slow, Status.FAIL)
    assert "moves 9 GB/s over 8 RDMA ports of 400 Gbit/s, and node0 can carry 400 GB/s" in found.message
    assert found.nodes == ("node0", "node1") and "NET/IB" in found.evidence[0].observed
    good = verdicts(run_records(300.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
    assert statuses(good) == {"pass"}


def test_one_rank_a_node_is_measured_by_one_port() -> None:
    ports = [hcas("node0"), hcas("node1")]
    assert statuses(verdicts(run_records(35.0, nodes=2, local=1, nccl=OVER_IB), *ports, nodes=2)) == {"pass"}
    assert statuses(verdicts(run_records(4.0, nodes=2, local=1, nccl=OVER_IB), *ports, nodes=2)) == {"fail"}


def test_the_weakest_node_decides() -> None:
    ports = [hcas("node0"), hcas("node1", 100.0)]
    found = verdicts(run_records(22.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
    assert "100 Gbit/s" in one(found, Status.PASS).subject


def test_ports_without_a_rate_are_unknown() -> None:
    for ports in ([], [hcas("node0", None), hcas("node1", None)], [hcas("node0")]):
        found = verdicts(run_records(1.0, nodes=2, local=8, nccl=OVER_IB), *ports, nodes=2)
        assert "the rate of the ports" in one(found, Status.UNKNOWN).message


def test_sockets_are_measured_by_the_speed_of_their_card() -> None:
    records = run_records(0.1, nodes=2, local=1, nccl=OVER_SOCKETS)
    cards = [card("node0", 25000), card("node1", 25000)]
    found = one(verdicts(records, *cards, nodes=2), Status.FAIL)
    assert "moves 0.1 GB/s over sockets on eth0, and node0 can carry 3.125 GB/s" in found.message
    fast = run_records(2.0, nodes=2, local=1, nccl=OVER_SOCKETS)
    assert statuses(verdicts(fast, *cards, nodes=2)) == {"pass"}
    # No socket of NCCL fills a card of 400 Gbit/s.
    assert statuses(verdicts(fast, card("node0", 400000), card("node1", 400000), nodes=2)) == {"pass"}


def test_virtual_cards_are_unknown() -> None:
    records = run_records(0.1, nodes=2, local=1, nccl=OVER_SOCKETS)
    for cards in ([card("node0", 10000, "veth"), card("node1", 10000, "veth")], [card("node0", None)]):
        assert "report no speed" in one(verdicts(records, *cards, nodes=2), Status.UNKNOWN).message


def test_small_messages_and_gloo_are_not_applicable() -> None:
    for more in ({"message": 4096}, {"backend": "gloo"}):
        assert statuses(in_node(1.0, **more)) == {"not-applicable"}
