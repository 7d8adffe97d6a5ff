"""The device nodes of NVIDIA's driver, and the NVSwitches of this node with the Fabric Manager that sets them up."""

from __future__ import annotations

import glob
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any

from preflight.agent import command
from preflight.agent.process import read_text
from preflight.agent.wire import ProbeUnavailable

DEV = "/dev"
CONTAINERD = "/etc/containerd/config.toml"
CDI = ("/etc/cdi", "/var/run/cdi")
MARKS = ("/.dockerenv", "/run/.containerenv")
_TOOL_S = 2.0


@dataclass(frozen=True)
class DeviceNodes:
    """`nodes` are the character devices of the driver, `unlinked` those without a link below /dev/char.

    `cgroup_driver` is `systemd`, `cgroupfs` or empty if no container engine reports it; `engine` is the source. `cdi`
    is whether an NVIDIA CDI specification exists, `container` whether this process is in a container.
    """

    nodes: list[str] = field(default_factory=list)
    unlinked: list[str] = field(default_factory=list)
    cgroup_driver: str = ""
    engine: str = ""
    toolkit: str = ""
    cdi: bool = False
    container: bool = False


def device_nodes(params: dict[str, Any]) -> DeviceNodes:
    """Examine /dev, and query docker, or containerd's configuration, for the control-group driver."""
    nodes, unlinked = [], []
    for path in sorted(glob.glob(os.path.join(DEV, "nvidia*"))):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISCHR(status.st_mode):
            continue
        nodes.append(path)
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        if not os.path.exists(os.path.join(DEV, "char", number)):
            unlinked.append(path)
    driver, engine = _docker()
    if not driver:
        driver, engine = _containerd()
    return DeviceNodes(
        nodes,
        unlinked,
        driver,
        engine,
        _version("nvidia-ctk", r"version (\d+\.\d+\.\d+)"),
        any(glob.glob(os.path.join(folder, "*nvidia*")) for folder in CDI),
        any(os.path.exists(mark) for mark in MARKS),
    )


def _docker() -> tuple[str, str]:
    try:
        ran = command.run(["docker", "info", "--format", "{{.CgroupDriver}}"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return "", ""
    output = ran.output.strip()
    return (output, "docker") if output in ("systemd", "cgroupfs") else ("", "")


def _containerd() -> tuple[str, str]:
    try:
        with open(CONTAINERD, errors="replace") as file:
            match = re.search(r"^\s*SystemdCgroup\s*=\s*(true|false)", file.read(262144), re.MULTILINE)
    except OSError:
        return "", ""
    return ("systemd" if match.group(1) == "true" else "cgroupfs", "containerd") if match else ("", "")


def _version(tool: str, pattern: str) -> str:
    """The version in the output of `tool --version`; empty if it is not known."""
    try:
        ran = command.run([tool, "--version"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return ""
    match = re.search(pattern, ran.output + ran.error)
    return match.group(1) if match else ""


SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
PCI = "/sys/bus/pci/devices"
PROC = "/proc"
_NVIDIA, _BRIDGE = "0x10de", "0x068000"
#: The kernel keeps 15 characters of a command's name.
_PROCESS = "nv-fabricmanager"[:15]


@dataclass(frozen=True)
class Fabric:
    """The switches to set up, and the service that does it.

    `running` is None if unknown, because processes of the machine are not visible from here; `service` is systemd's
    word for the unit, `version` that of the installed Fabric Manager; empty if unknown.
    """

    switches: int
    running: bool | None = None
    service: str = ""
    version: str = ""


def fabric(params: dict[str, Any]) -> Fabric:
    """Find switches by the driver's list or, without it, by PCI class; nothing more is queried if there are none."""
    switches = len(glob.glob(os.path.join(SWITCHES, "*"))) or _switches_by_pci_class()
    if not switches:
        return Fabric(0)
    return Fabric(switches, _running(), _service(), _version("nv-fabricmanager", r"(\d+\.\d+(?:\.\d+)?)"))


def _switches_by_pci_class() -> int:
    count = 0
    for device in glob.glob(os.path.join(PCI, "*")):
        if read_text(os.path.join(device, "class")) == _BRIDGE and read_text(os.path.join(device, "vendor")) == _NVIDIA:
            count += 1
    return count


def _running() -> bool | None:
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
