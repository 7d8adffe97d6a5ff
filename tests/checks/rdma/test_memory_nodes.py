"""RDMA filters that leave the GPUs of one socket without a card of their own."""

from __future__ import annotations

from typing import Any

from preflight.model.findings import Status
from preflight.model.recording import FactRecord
from preflight.plugins.authoring import Verdict
from preflight_checks.probes.pci import Pci, pci
from preflight_checks.probes.rdma import RdmaDevice, RdmaDevices, RdmaPort, rdma
from preflight_checks.rdma.port_health import hca_far
from tests.checks.check_builders import fact, facts, fleet, job, judge, one, statuses

UP = RdmaPort(1, "ACTIVE", "LinkUp", 400.0, "400 Gb/sec (4X NDR)", "InfiniBand")
DOWN = RdmaPort(1, "DOWN", "Polling", 400.0, "400 Gb/sec (4X NDR)", "InfiniBand")
GPUS = {f"0000:{index}0:00.0": index // 4 for index in range(8)}
CARDS = {f"0000:{index}a:00.0": index // 2 for index in range(4)}


def node(name: str, *, last: RdmaPort = UP, numa: dict[str, int] | None = None) -> list[FactRecord]:
    """Eight GPUs and four cards on two sockets; the last two cards are on the second."""
    places = {**GPUS, **CARDS} if numa is None else numa
    devices = [
        RdmaDevice(f"mlx5_{index}", "mlx5_core", pci=address, ports=[UP if index < 2 else last])
        for index, address in enumerate(CARDS)
    ]
    return [fact(pci, name, Pci(list(GPUS), list(CARDS), numa=places)), fact(rdma, name, RdmaDevices(devices))]


def verdicts(*records: FactRecord, **named: Any) -> list[Verdict]:
    return judge(hca_far, job(backend="nccl", **named), fleet(2), facts(*records))


def test_a_filter_of_one_socket_is_named_with_the_idle_cards() -> None:
    found = one(verdicts(*node("node0"), env_NCCL_IB_HCA="mlx5_0,mlx5_1"), Status.FAIL)
    assert "NCCL_IB_HCA=mlx5_0,mlx5_1 leaves 4 GPUs of node0 on memory node 1" in found.message
    assert "mlx5_2, mlx5_3 are active there" in found.message and found.nodes == ("node0",)
    assert found.locations and "Add mlx5_2, mlx5_3 to NCCL_IB_HCA" in found.remedy


def test_a_filter_with_a_card_on_each_socket_passes() -> None:
    for value in ("mlx5_0,mlx5_2", "mlx5", "^mlx5_3"):
        assert one(verdicts(*node("node0"), env_NCCL_IB_HCA=value), Status.PASS)


def test_a_socket_without_an_active_card_is_not_the_filters_fault() -> None:
    assert one(verdicts(*node("node0", last=DOWN), env_NCCL_IB_HCA="mlx5_0,mlx5_1"), Status.PASS)


def test_without_a_filter_nothing_is_judged() -> None:
    assert statuses(verdicts(*node("node0"))) == {"not-applicable"}


def test_without_memory_nodes_it_is_unknown() -> None:
    for numa in ({}, {**dict.fromkeys(GPUS, -1), **CARDS}):
        found = one(verdicts(*node("node0", numa=numa), env_NCCL_IB_HCA="mlx5_0"), Status.UNKNOWN)
        assert "names no memory node for its GPUs" in found.message
