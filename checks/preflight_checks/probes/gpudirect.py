"""Whether this node's network cards may reach GPU memory by themselves (GPUDirect RDMA): modules, driver, kernel."""

from __future__ import annotations

import os

from preflight.node.record import ANNOTATED, dataclass

if ANNOTATED:
    from typing import Any, Dict

#: Where NCCL looks for the peer-memory module (src/transport/net_ib/gdr.cc).
PEER_MEMORY = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
DRIVER = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class GpuDirect:
    """`driver` is empty where no NVIDIA driver is loaded; `open_modules` says whether it is the open variant.

    `peer_memory` is the path of the module that NCCL would find; empty where none is loaded.
    """

    driver: str = ""
    open_modules: bool = False
    peer_memory: str = ""
    kernel: str = ""


def gpudirect(params: Dict[str, Any]) -> GpuDirect:
    """What this node has for GPUDirect RDMA."""
    try:
        with open(DRIVER, "rb") as file:
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:
        text = ""
    found = [path for path in PEER_MEMORY if os.path.exists(path)]
    return GpuDirect(driver_version(text), "Open Kernel Module" in text, found[0] if found else "", os.uname().release)


def driver_version(text: str) -> str:
    """`535.183.01` out of /proc/driver/nvidia/version; empty where it is not there.

    The first line ends, behind `Kernel Module` and perhaps an architecture, in the version and a date.
    """
    for word in text.splitlines()[0].split() if text else []:
        parts = word.split(".")
        if len(parts) > 1 and all(part.isdigit() for part in parts):
            return word
    return ""
