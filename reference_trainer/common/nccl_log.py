"""Captures and parses NCCL's own log of how it connects its ranks, without a file on the node.

NCCL writes to the file that NCCL_DEBUG_FILE names (src/debug.cc). Here that file exists only in memory and disappears
with the rank. The subsystems INIT and NET contain what is needed: the selected network, its devices, and the transport
of each channel.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from dataclasses import dataclass, field
from typing import Dict, List, MutableMapping, Optional, Tuple

_VERSION = re.compile(r"NCCL version (\d[\w.]*)")
_USING = re.compile(r"NET/(\w+) : Using (\[0\].*)")
_DEVICE = re.compile(r"([\w.@-]+):(\d+)/(IB|RoCE)")
_ADDRESS = re.compile(r"\[\d+\]([^:\s\[\]]+):")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[0\])?([^:\s]+):")
_NETWORK = re.compile(r"Using network ([^\r\n]+)")
_ASSIGNED = re.compile(r"Assigned NET plugin ([^\r\n]+?) to comm")
_VIA = re.compile(r"(?:Channel|Ring) \d[\d/]* : \d+\[\w+\] -> \d+\[\w+\].* via (\S+)")
_DIRECT = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA")
_WARNING = re.compile(r"NCCL WARN (.*)")
_MAX_WARNINGS, _MAX_LENGTH = 5, 200


@dataclass(frozen=True)
class NcclConnections:
    """How NCCL connects one rank; all fields are empty without log output.

    Args:
        network: what carries data between nodes: `IB`, `Socket`, or the name of a plugin.
        devices: RDMA ports (`mlx5_0:1`) or interfaces (`eth0`) that this network uses.
        bootstrap: the interface for bootstrapping.
        via: the number of channels by transport: `NET/IB`, `NET/Socket`, `P2P/CUMEM`, `SHM/direct` ...
        direct: whether the network accesses GPU memory directly; None if unknown.
        warnings: the first few warnings.
    """

    version: str = ""
    network: str = ""
    devices: List[str] = field(default_factory=list)
    bootstrap: str = ""
    via: Dict[str, int] = field(default_factory=dict)
    direct: Optional[bool] = None
    warnings: List[str] = field(default_factory=list)

    @property
    def sockets(self) -> bool:
        """Whether data between nodes goes over plain sockets."""
        return self.network.lower().endswith("socket") or any(name.startswith("NET/Socket") for name in self.via)


def parse(text: str) -> NcclConnections:
    """Parse NCCL's log of one rank, of NCCL 2.4 or newer."""
    version, network, bootstrap = "", "", ""
    devices = {}  # type: Dict[str, List[str]]
    via = {}  # type: Dict[str, int]
    direct = None  # type: Optional[bool]
    warnings = []  # type: List[str]
    for line in text.splitlines():
        if "NCCL" not in line:
            continue
        found = _VERSION.search(line)
        if found:
            version = version or found.group(1)
        found = _USING.search(line)
        if found:
            devices.setdefault(found.group(1), _devices(found.group(2)))
        found = _BOOTSTRAP.search(line)
        if found:
            bootstrap = bootstrap or found.group(1)
        found = _NETWORK.search(line) or _ASSIGNED.search(line)
        if found:
            network = found.group(1).strip()
        found = _VIA.search(line)
        if found:
            kind = "/".join(found.group(1).split("/")[:2])
            via[kind] = via.get(kind, 0) + 1
        found = _DIRECT.search(line)
        if found:
            direct = direct is not False and found.group(1) == "Enabled"
        found = _WARNING.search(line)
        if found and len(warnings) < _MAX_WARNINGS:
            warnings.append(found.group(1).strip()[:_MAX_LENGTH])
    if not network and len(devices) == 1:
        (network,) = devices
    return NcclConnections(version, network, _of_network(network, devices), bootstrap, via, direct, warnings)


def _devices(text: str) -> List[str]:
    """The names in `[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>` or `[0]eth0:10.0.0.1<0>`."""
    text = text.partition("; OOB")[0]
    ports = ["%s:%s" % (name, port) for name, port, _ in _DEVICE.findall(text)]
    return ports or _ADDRESS.findall(text)


def _of_network(network: str, devices: Dict[str, List[str]]) -> List[str]:
    """The devices of the selected network: RDMA plugins (IBext) name theirs as NCCL itself does."""
    if network in devices:
        return devices[network]
    if network.lower().endswith("socket"):
        return next((names for kind, names in devices.items() if kind.lower().endswith("socket")), [])
    return devices.get("IB", [])


class Capture:
    """Makes NCCL log into memory, starting before its first communicator is created, whatever the job configures."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._fd, path = _anonymous()
        environment["NCCL_DEBUG"] = "INFO"
        environment["NCCL_DEBUG_SUBSYS"] = "INIT,NET"
        environment["NCCL_DEBUG_FILE"] = path

    def text(self) -> str:
        """The log so far."""
        # NCCL before 2.8 leaves its file buffered by the C library.
        ctypes.CDLL(None).fflush(None)
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, size, 0).decode("utf-8", "replace")


def _anonymous() -> Tuple[int, str]:
    """An anonymous file, and the path under which this process can open it again."""
    try:
        fd = os.memfd_create("preflight-nccl")
    except (AttributeError, OSError):
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    return fd, "/proc/self/fd/%d" % fd
