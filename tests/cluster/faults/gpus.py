"""Drivers and devices that differ on one node (the stub NVML library's answers)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..gpus import CONFIGURATION, LIBRARY, Gpus, NvmlError
from ..node import Node
from .base import FaultUnavailable, edited

__all__ = ["driver_version", "gpu_config", "gpu_lost", "nvml_absent"]


@contextmanager
def gpu_config(node: Node, gpus: Gpus) -> Iterator[None]:
    """The node answers with another driver or other devices; see `Gpus`."""
    _require_stub(node)
    with edited(node, CONFIGURATION, gpus.text(node.name)):
        yield


@contextmanager
def driver_version(node: Node, version: str, *, cuda: int | None = None) -> Iterator[None]:
    """The node has another driver, and where given another CUDA driver version (12020 is 12.2)."""
    changes = {"driver": version} | ({} if cuda is None else {"cuda": str(cuda)})
    with _changed(node, changes):
        yield


@contextmanager
def gpu_lost(node: Node, index: int) -> Iterator[None]:
    """Device `index` has fallen off the bus: it counts, but every question about it fails."""
    with _changed(node, {f"gpu{index}.error": str(NvmlError.GPU_IS_LOST)}):
        yield


@contextmanager
def nvml_absent(node: Node) -> Iterator[None]:
    """The node has no NVML library at all, as without a driver package."""
    _require_stub(node)
    aside = f"{LIBRARY}.aside"
    node.must(["mv", LIBRARY, aside])
    try:
        yield
    finally:
        node.must(["mv", aside, LIBRARY])


@contextmanager
def _changed(node: Node, changes: dict[str, str]) -> Iterator[None]:
    _require_stub(node)
    lines = node.read_text(CONFIGURATION).splitlines()
    kept = [line for line in lines if line.split("=")[0] not in changes]
    new = [f"{key}={value}" for key, value in changes.items()]
    with edited(node, CONFIGURATION, "\n".join([*kept, *new]) + "\n"):
        yield


def _require_stub(node: Node) -> None:
    if not node.path(CONFIGURATION).exists():
        raise FaultUnavailable(f"{node.name} has no virtual GPUs: Cluster(..., gpus=2)")
