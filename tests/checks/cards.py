"""GPUs of nodes for tests: healthy ones, and ones with a chosen fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preflight.model.recording import FactRecord
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from tests.checks.check_builders import fact

JOB = {"backend": "nccl", "gpus_per_node": 2, "processes_per_node": 2}
H100 = "NVIDIA H100 80GB HBM3"


def healthy(index: int, node: str = "node0") -> Gpu:
    """A healthy H100."""
    return Gpu(
        index,
        H100,
        f"GPU-{node}-{index}",
        80 << 30,
        "9.0",
        pci=f"0000:1{index}:00.0",
        memory_used_bytes=600 << 20,
        ecc_enabled=True,
        ecc_uncorrected=0,
        ecc_uncorrected_ever=1,
        rows_remap_pending=False,
        rows_remap_failed=False,
        pages_retired=0,
        clock_reasons=1,
        clock_mhz=345,
        clock_max_mhz=1980,
        clock_application_mhz=1980,
        power_w=70.0,
        power_limit_w=700.0,
        temperature_c=30,
        temperature_slowdown_c=87,
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=1,
        pcie_generation_max=5,
        nvlinks=[True] * 18,
        mig_enabled=False,
        mig_pending=False,
        persistence=True,
        compute_mode=0,
        processes=[],
        recovery_action=0,
        vbios="96.00",
        gsp_firmware="550.54.15",
    )


def node_with(node: str, *cards: Gpu, count: int = 2, **more: Any) -> FactRecord:
    """The fact of a node with `count` cards: those in `cards` by their index, the others healthy."""
    mine = {card.index: card for card in cards}
    listed = [mine.get(index, healthy(index, node)) for index in range(count)]
    values = {"driver": "550.54.15", "kernel_driver": "550.54.15", "cuda_driver": "12.4", **more}
    return fact(gpus, node, Gpus(gpus=listed, **values))


def faulty(index: int, node: str, **changes: Any) -> Gpu:
    """A healthy card with these values replaced."""
    return replace(healthy(index, node), **changes)
