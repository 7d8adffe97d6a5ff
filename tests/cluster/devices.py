"""Virtual GPUs and RDMA cards: the answers of the stub NVML library on one node, and files as below /sys."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .namespace import ClusterError

__all__ = [
    "CONFIGURATION",
    "CUDA_LIBRARY",
    "LIBRARY",
    "Gpu",
    "Gpus",
    "Hca",
    "NvmlError",
    "compile_library",
    "compile_program",
    "files_of",
    "hcas",
    "library_folder",
    "roce_gids",
]

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


# A simulated /sys/class/infiniband: devices in any state, for tests of probes and for virtual nodes.


@dataclass(frozen=True)
class Hca:
    """One device with one port; `gids` maps an index to GID, type and interface as the kernel writes them."""

    name: str
    state: str = "4: ACTIVE"
    physical: str = "5: LinkUp"
    rate: str = "200 Gb/sec (4X HDR)"
    link_layer: str = "InfiniBand"
    firmware: str = "28.39.1002"
    board: str = "MT_0000000838"
    gids: Mapping[int, tuple[str, str, str]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


def hcas(count: int, **different: str) -> list[Hca]:
    """mlx5_0 ... all alike."""
    return [Hca(f"mlx5_{index}", **different) for index in range(count)]  # type: ignore[arg-type]


def roce_gids(address: str, interface: str = "eth0") -> dict[int, tuple[str, str, str]]:
    """The table of an ordinary RoCE port: link-local and IPv4, each as version 1 and 2."""
    numbers = [int(part) for part in address.split(".")]
    mapped = f"0000:0000:0000:0000:0000:ffff:{numbers[0]:02x}{numbers[1]:02x}:{numbers[2]:02x}{numbers[3]:02x}"
    local = f"fe80:0000:0000:0000:0ac0:ebff:feda:{numbers[2]:02x}{numbers[3]:02x}"
    return {
        0: (local, "IB/RoCE v1", interface),
        1: (local, "RoCE v2", interface),
        2: (mapped, "IB/RoCE v1", interface),
        3: (mapped, "RoCE v2", interface),
    }


def files_of(devices: Sequence[Hca]) -> dict[str, str]:
    """The files of the tree, relative to /sys/class/infiniband, with their text."""
    files: dict[str, str] = {}
    for index, hca in enumerate(devices):
        port = f"{hca.name}/ports/1"
        files |= {
            f"{hca.name}/fw_ver": hca.firmware,
            f"{hca.name}/board_id": hca.board,
            f"{hca.name}/node_guid": f"0c42:a103:0000:{index:04x}",
            f"{port}/state": hca.state,
            f"{port}/phys_state": hca.physical,
            f"{port}/rate": hca.rate,
            f"{port}/link_layer": hca.link_layer,
        }
        table = {0: (f"fe80:0000:0000:0000:0c42:a103:0000:{index:04x}", "IB/RoCE v1", ""), **hca.gids}
        for place in range(8):
            gid, kind, interface = table.get(place, ("0000:" * 7 + "0000", "", ""))
            files[f"{port}/gids/{place}"] = gid
            if kind:
                files[f"{port}/gid_attrs/types/{place}"] = kind
                files[f"{port}/gid_attrs/ndevs/{place}"] = interface
        for name in ("link_downed", "symbol_error", "local_link_integrity_errors", "link_error_recovery"):
            files[f"{port}/counters/{name}"] = str(hca.counters.get(name, 0))
    return {name: f"{text}\n" for name, text in files.items()}


# Small C libraries and programs, compiled once and cached by the content of their source.


def compile_library(source: str) -> Path:
    """The shared library made of this package's C file `source`, cached in a folder of our own."""
    return _compiled(Path(__file__).with_name(source), ".so", ["-shared", "-fPIC"])


def compile_program(source: str, folder: Path) -> Path:
    """The program made of the C file `source` in `folder`, cached in the same way."""
    return _compiled(folder / source, "", [])


def _compiled(path: Path, suffix: str, options: list[str]) -> Path:
    folder = Path(tempfile.gettempdir()) / f"virtual-cluster-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # A folder made by another user could hold a foreign library.
    if folder.is_symlink() or folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise ClusterError(f"{folder} is not ours alone: remove it")
    made = folder / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}{suffix}"
    if not made.exists():
        # Compile beside and rename, so that no process loads an incomplete file.
        partial = made.with_suffix(f".{os.getpid()}")
        command = ["cc", *options, "-O1", "-Wall", "-o", str(partial), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ClusterError(f"{path.name} does not compile: {done.stderr}")
        partial.rename(made)
    return made
