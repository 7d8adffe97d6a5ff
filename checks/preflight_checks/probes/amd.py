"""AMD GPUs as the kernel lists them: this needs no vendor tool, and only read access to sysfs."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Dict, List, Optional

from preflight.agent.process import read_text

KFD = "/sys/class/kfd/kfd/topology/nodes"
MODULE = "/sys/module/amdgpu"
PCI = "/sys/bus/pci/devices"
_AMD = "4098"  # 0x1002


@dataclass(frozen=True)
class Device:
    """One GPU in KFD's topology. `architecture` is its name in LLVM, such as `gfx90a`."""

    name: str
    identity: str
    architecture: str
    pci: str
    memory_bytes: Optional[int]


def devices() -> List[Device]:
    """Every GPU that compute programs can use, in KFD's order; empty without the driver."""
    found = []
    for folder in sorted(glob.glob(os.path.join(KFD, "*")), key=_number):
        values = parse_properties(read_text(os.path.join(folder, "properties")))
        # Nodes without compute units are processors.
        if values.get("simd_count", "0") == "0" or values.get("vendor_id") != _AMD:
            continue
        pci = location(int(values.get("domain", "0")), int(values.get("location_id", "0")))
        found.append(
            Device(
                read_text(os.path.join(PCI, pci, "product_name")) or read_text(os.path.join(folder, "name")),
                values.get("unique_id", ""),
                architecture(int(values.get("gfx_target_version", "0"))),
                pci,
                _whole_number(read_text(os.path.join(PCI, pci, "mem_info_vram_total"))),
            )
        )
    return found


def driver_version() -> str:
    """The version of AMD's packaged module; empty for the kernel's own."""
    return read_text(os.path.join(MODULE, "version"))


def parse_properties(text: str) -> Dict[str, str]:
    """`name value` lines of a node of KFD's topology."""
    return dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)


def architecture(version: int) -> str:
    """KFD's number as LLVM's name: 90010 is gfx90a, 110000 is gfx1100."""
    return "gfx%d%x%x" % (version // 10000, version // 100 % 100, version % 100) if version else ""


def location(domain: int, place: int) -> str:
    """KFD's location as a PCI address: bus in the upper byte, then five bits of device and three of function."""
    return "%04x:%02x:%02x.%d" % (domain, place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7)


def _number(path: str) -> int:
    name = os.path.basename(path)
    return int(name) if name.isdecimal() else -1


def _whole_number(text: str) -> Optional[int]:
    text = text.strip()
    return int(text) if text.isdecimal() else None
