"""Whether a rank may use RDMA devices, and whether network cards can access GPU memory directly (GPUDirect RDMA)."""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.process import list_folder, read_text
from preflight_checks.probes.gpu_device import kernel_driver

NODES = "/dev/infiniband"
VERBS = "libibverbs.so.1"


@dataclass(frozen=True)
class RdmaAccess:
    """The devices and the library that a process in the job context may open.

    `nodes` are the uverbs device nodes, `refused` those of them that may not be opened, with the reason.
    `missing_library` is empty if libibverbs can be loaded.
    """

    nodes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    missing_library: str = ""


def rdma_access(params: dict[str, Any]) -> RdmaAccess:
    """What this process may open. Run it in the job context: a container may lack devices of the node."""
    nodes = [name for name in list_folder(NODES) if name.startswith("uverbs")]
    refused: dict[str, str] = {}
    for name in nodes:
        try:
            # Opening gives a handle and starts nothing; verbs begin with the first ioctl.
            os.close(os.open(os.path.join(NODES, name), os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            refused[name] = error.strerror or errno.errorcode.get(error.errno or 0, "error")
    return RdmaAccess(nodes, refused, _library())


def _library() -> str:
    try:
        ctypes.CDLL(VERBS)
    except OSError as error:
        return str(error)
    return ""


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


def gpudirect(params: dict[str, Any]) -> GpuDirect:
    """The parts of GPUDirect RDMA on this node."""
    text = read_text(DRIVER)
    found = [path for path in PEER_MEMORY if os.path.exists(path)]
    return GpuDirect(kernel_driver(text), "Open Kernel Module" in text, found[0] if found else "", os.uname().release)
