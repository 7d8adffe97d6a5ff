"""PCI bridges above GPUs and network cards that redirect peer traffic (ACS), and the mode of the IOMMU.

ACS is in the extended configuration space, which only root may read: otherwise the bridges count as unreadable. The
mode of the IOMMU needs no privilege.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.process import read_number, read_text
from preflight.agent.wire import ProbeUnavailable

DEVICES = "/sys/bus/pci/devices"
CPUINFO = "/proc/cpuinfo"
CMDLINE = "/proc/cmdline"
_ACS = 0x000D
#: Bits of the control register that send requests or completions between peers up to the root (PCIe, 7.7.7.3).
_REDIRECT = 0x04 | 0x08
#: Display and 3D controllers, network and InfiniBand controllers, and others for processing (AMD's accelerators).
_GPU = ("0x0300", "0x0302", "0x1200")
_NIC = ("0x0200", "0x0207")


@dataclass(frozen=True)
class Pci:
    """The PCI bridges between GPUs and RDMA cards.

    Args:
        gpus, cards: their addresses; cards are network controllers with an RDMA device.
        bridges: the bridges above them.
        redirecting: bridges that redirect peer traffic to the root complex.
        unreadable: bridges whose extended configuration space could not be read (needs root).
        iommu: type of the IOMMU domains of these devices (`DMA`, `DMA-FQ`, `identity`), empty without an IOMMU.
        virtual: this is a virtual machine, whose bridges are not the real ones.
        kernel_options: the ones that concern the IOMMU.
        numa: the memory node of each GPU and card; -1 if the firmware names none.
    """

    gpus: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    bridges: list[str] = field(default_factory=list)
    redirecting: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    iommu: list[str] = field(default_factory=list)
    virtual: bool | None = None
    kernel_options: list[str] = field(default_factory=list)
    numa: dict[str, int] = field(default_factory=dict)


def pci(params: dict[str, Any]) -> Pci:
    """The PCI bridges between this node's GPUs and RDMA cards. Raises ProbeUnavailable without a PCI bus in /sys."""
    try:
        names = sorted(os.listdir(DEVICES))
    except OSError as error:
        kind = "denied" if isinstance(error, PermissionError) else "missing"
        raise ProbeUnavailable(kind, f"{DEVICES} cannot be listed: {error.strerror}") from None
    classes = {name: read_text(os.path.join(DEVICES, name, "class"))[:6] for name in names}
    gpus = [name for name in names if classes[name] in _GPU and _text_of(name, "vendor") in ("0x10de", "0x1002")]
    cards = [n for n in names if classes[n] in _NIC and os.path.isdir(os.path.join(DEVICES, n, "infiniband"))]
    above: set[str] = set()
    for name in gpus + cards:
        above.update(part for part in os.path.realpath(os.path.join(DEVICES, name)).split("/")[:-1] if part in classes)
    bridges = sorted(above)
    redirecting: list[str] = []
    unreadable: list[str] = []
    for name in bridges:
        control = acs_control(_bytes(os.path.join(DEVICES, name, "config")))
        if control is None:
            unreadable.append(name)
        elif control & _REDIRECT:
            redirecting.append(name)
    types = {_text_of(name, "iommu_group/type") for name in gpus + cards} - {""}
    places = {name: read_number(os.path.join(DEVICES, name, "numa_node")) for name in gpus + cards}
    numa = {name: place for name, place in places.items() if place is not None}
    return Pci(gpus, cards, bridges, redirecting, unreadable, sorted(types), _virtual(), _options(), numa)


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a device's configuration space; 0 if it has none, None if it is cut off."""
    if len(config) <= 256:
        return None
    at = 0x100
    for _step in range(64):
        if at + 8 > len(config) or at < 0x100:
            return 0
        header = struct.unpack_from("<I", config, at)[0]
        if header in (0, 0xFFFFFFFF):
            return 0
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", config, at + 6)[0])
        at = header >> 20
    return 0


def _virtual() -> bool | None:
    """Whether the processor reports a hypervisor; None if unknown."""
    text = read_text(CPUINFO)
    flags = [line for line in text.splitlines() if line.startswith("flags")]
    return "hypervisor" in flags[0].split() if flags else None


def _options() -> list[str]:
    return [word for word in read_text(CMDLINE).split() if "iommu" in word]


def _text_of(name: str, file: str) -> str:
    return read_text(os.path.join(DEVICES, name, file))


def _bytes(path: str, max_bytes: int = 4096) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""
