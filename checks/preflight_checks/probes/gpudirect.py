"""Whether this node's network cards can access GPU memory directly (GPUDirect RDMA): modules, driver, kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
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
    """`driver` is empty if no NVIDIA driver is loaded; `open_modules` is whether it is the open variant.

    `peer_memory` is the path of the module that NCCL would find; empty if none is loaded.
    """

    driver: str = ""
    open_modules: bool = False
    peer_memory: str = ""
    kernel: str = ""


def gpudirect(params: Dict[str, Any]) -> GpuDirect:
    """The parts of GPUDirect RDMA on this node."""
    try:
        with open(DRIVER, "rb") as file:
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:
        text = ""
    found = [path for path in PEER_MEMORY if os.path.exists(path)]
    return GpuDirect(driver_version(text), "Open Kernel Module" in text, found[0] if found else "", os.uname().release)


def driver_version(text: str) -> str:
    """`535.183.01` from /proc/driver/nvidia/version; empty if it does not exist.

    The first line ends, after `Kernel Module` and perhaps an architecture, in the version and a date.
    """
    for word in text.splitlines()[0].split() if text else []:
        parts = word.split(".")
        if len(parts) > 1 and all(part.isdecimal() for part in parts):
            return word
    return ""
