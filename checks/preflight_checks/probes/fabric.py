"""NVSwitches of this node, and the Fabric Manager that must set them up."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

from preflight.agent import command
from preflight.agent.process import read_text
from preflight.agent.wire import ProbeUnavailable

SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
PCI = "/sys/bus/pci/devices"
PROC = "/proc"
_NVIDIA, _BRIDGE = "0x10de", "0x068000"
_TOOL_S = 2.0
#: The kernel keeps 15 characters of a command's name.
_PROCESS = "nv-fabricmanager"[:15]


@dataclass(frozen=True)
class Fabric:
    """The switches to set up, and the service that does it.

    `running` is None if unknown, because processes of the machine are not visible from here; `service` is systemd's
    word for the unit, `version` that of the installed Fabric Manager; empty if unknown.
    """

    switches: int
    running: Optional[bool] = None
    service: str = ""
    version: str = ""


def fabric(params: Dict[str, Any]) -> Fabric:
    """Find switches by the driver's list or, without it, by PCI class; nothing more is queried if there are none."""
    switches = len(glob.glob(os.path.join(SWITCHES, "*"))) or _switches_by_pci_class()
    if not switches:
        return Fabric(0)
    return Fabric(switches, _running(), _service(), _version())


def _switches_by_pci_class() -> int:
    count = 0
    for device in glob.glob(os.path.join(PCI, "*")):
        if read_text(os.path.join(device, "class")) == _BRIDGE and read_text(os.path.join(device, "vendor")) == _NVIDIA:
            count += 1
    return count


def _running() -> Optional[bool]:
    for path in glob.glob(os.path.join(PROC, "[0-9]*", "comm")):
        if read_text(os.path.join(os.path.dirname(path), "comm")) == _PROCESS:
            return True
    return False if read_text(os.path.join(PROC, "2", "comm")) == "kthreadd" else None


def _service() -> str:
    try:
        ran = command.run(["systemctl", "is-active", "nvidia-fabricmanager"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return ""
    word = ran.output.strip()
    return word if re.match(r"(active|inactive|failed|activating|deactivating|reloading)$", word) else ""


def _version() -> str:
    try:
        ran = command.run(["nv-fabricmanager", "--version"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return ""
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", ran.output + ran.error)
    return match.group(1) if match else ""
