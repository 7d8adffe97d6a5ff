"""Drivers and devices that differ on one node (answers of the stub NVML library)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..gpus import CONFIGURATION, CUDA_LIBRARY, LIBRARY, Gpus, NvmlError
from ..node import Node
from .base import FaultUnavailable, edited

__all__ = [
    "cuda_library",
    "driver_files",
    "driver_version",
    "gpu_config",
    "gpu_count",
    "gpu_lost",
    "gpu_state",
    "gpu_wedged",
    "nvml_absent",
    "nvml_error",
    "nvml_wedged",
]

#: The duration of a hang: longer than any deadline.
_FOREVER_S = 600
_numbers = itertools.count(1)


@contextmanager
def gpu_config(node: Node, gpus: Gpus) -> Iterator[None]:
    """The node reports another driver or other devices; see `Gpus`."""
    _require_stub(node)
    with edited(node, CONFIGURATION, gpus.text(node.name)):
        yield


@contextmanager
def driver_version(node: Node, version: str, *, cuda: int | None = None) -> Iterator[None]:
    """The node has another driver and, if given, another CUDA driver version (12020 is 12.2)."""
    changes = {"driver": version} | ({} if cuda is None else {"cuda": str(cuda)})
    with _changed(node, changes), cuda_library(node, version):
        yield


@contextmanager
def cuda_library(node: Node, version: str | None, *, empty: bool = False) -> Iterator[None]:
    """The node's libcuda.so.1 has this version, is empty, or (None) does not exist."""
    _require_stub(node)
    aside = f"{CUDA_LIBRARY}.aside"
    node.must(["mv", CUDA_LIBRARY, aside])
    mine = CUDA_LIBRARY.replace(".1", f".{version}")
    try:
        if empty:
            node.must(["sh", "-c", f": > {CUDA_LIBRARY}"])
        elif version is not None:
            node.must(["sh", "-c", f"[ -e {mine} ] || cp -L {aside} {mine}; ln -s {mine} {CUDA_LIBRARY}"])
        yield
    finally:
        node.must(["mv", "-f", aside, CUDA_LIBRARY])


@contextmanager
def gpu_lost(node: Node, index: int) -> Iterator[None]:
    """Device `index` has fallen off the bus: it is counted, but every query of it fails."""
    with _changed(node, {f"gpu{index}.error": str(NvmlError.GPU_IS_LOST)}):
        yield


@contextmanager
def gpu_state(node: Node, index: int, **state: int | str) -> Iterator[None]:
    """Device `index` returns these values, by the keys of `stub_nvml.c`; `error:4` is an error code."""
    with _changed(node, {f"gpu{index}.{key}": str(value) for key, value in state.items()}):
        yield


@contextmanager
def gpu_wedged(node: Node, index: int, key: str) -> Iterator[None]:
    """The query for `key` of device `index` hangs in the driver."""
    with gpu_state(node, index, **{key: f"wedge:{_FOREVER_S}"}):
        yield


@contextmanager
def gpu_count(node: Node, count: int) -> Iterator[None]:
    """The node lists only the first `count` of its devices."""
    with _changed(node, {"count": str(count)}):
        yield


@contextmanager
def nvml_error(node: Node, code: int) -> Iterator[None]:
    """The initialisation of NVML fails with this nvmlReturn_t; see `NvmlError`."""
    with _changed(node, {"init_error": str(code)}):
        yield


@contextmanager
def nvml_wedged(node: Node) -> Iterator[None]:
    """NVML's initialisation hangs."""
    with _changed(node, {"init_error": f"wedge:{_FOREVER_S}"}):
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


@contextmanager
def driver_files(node: Node, files: Mapping[str, str]) -> Iterator[None]:
    """On this node /proc/driver holds these files, as with drivers of further devices."""
    instead = f"/run/faults/drivers-{next(_numbers)}"
    for name, text in files.items():
        node.write_text(f"{instead}/{name}", text)
    node.must(["mount", "--bind", instead, "/proc/driver"])
    try:
        yield
    finally:
        node.must(["umount", "-l", "/proc/driver"])
        node.must(["rm", "-rf", instead])
