"""Virtual GPUs: the answers of the stub NVML library on one node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .namespace import ClusterError

__all__ = ["CONFIGURATION", "CUDA_LIBRARY", "LIBRARY", "Gpu", "Gpus", "NvmlError", "library_folder"]

CONFIGURATION = "/run/stub-nvml.conf"
LIBRARY = "/run/libnvidia-ml.so.1"
CUDA_LIBRARY = "/run/libcuda.so.1"


class NvmlError:
    """The nvmlReturn_t numbers that a node can return (nvml.h)."""

    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    UNKNOWN = 999


@dataclass(frozen=True)
class Gpu:
    """One device; `more` holds further keys of `stub_nvml.c`, such as `ecc_uncorrected`."""

    name: str = "NVIDIA A100-SXM4-80GB"
    memory_total_bytes: int = 80 * 2**30
    memory_used_bytes: int = 500 * 2**20
    compute_capability: str = "8.0"
    pci_bus_id: str = ""
    uuid: str = ""
    more: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gpus:
    """The driver and devices of one node; `init_error` is answered instead of anything else."""

    devices: tuple[Gpu, ...] = ()
    driver_version: str = "535.183.01"
    cuda_driver_version: int = 12020
    init_error: int = 0

    def text(self, node: str) -> str:
        """The configuration file; empty identities are generated, different for every device."""
        lines = [
            f"init_error={self.init_error}",
            f"driver={self.driver_version}",
            f"nvml={self.cuda_driver_version // 1000}.{self.driver_version}",
            f"cuda={self.cuda_driver_version}",
            f"count={len(self.devices)}",
        ]
        for index, gpu in enumerate(self.devices):
            digest = hashlib.sha256(f"{node} {index}".encode()).hexdigest()
            made_up = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
            values: dict[str, int | str] = {
                "name": gpu.name,
                "uuid": gpu.uuid or made_up,
                "pci_bus_id": gpu.pci_bus_id or f"00000000:{0x10 + index:02X}:00.0",
                "memory_total": gpu.memory_total_bytes,
                "memory_used": gpu.memory_used_bytes,
                "compute_capability": gpu.compute_capability,
                "minor_number": index,
                **gpu.more,
            }
            lines += [f"gpu{index}.{key}={value}" for key, value in values.items()]
        return "\n".join(lines) + "\n"


def library_folder() -> str:
    """The folder of this process's C library, which the loader always searches."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = Path(line.split()[-1])
        if path.name.startswith("libc.so") or path.name.startswith("libc-"):
            return str(path.parent)
    raise ClusterError("no C library among this process's mappings")
