"""The device nodes of NVIDIA's driver, and what would remove them from a running container."""

from __future__ import annotations

import glob
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any, Dict, List

from preflight.agent import command
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

    nodes: List[str] = field(default_factory=list)
    unlinked: List[str] = field(default_factory=list)
    cgroup_driver: str = ""
    engine: str = ""
    toolkit: str = ""
    cdi: bool = False
    container: bool = False


def device_nodes(params: Dict[str, Any]) -> DeviceNodes:
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
        number = "%d:%d" % (os.major(status.st_rdev), os.minor(status.st_rdev))
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
        _toolkit(),
        any(glob.glob(os.path.join(folder, "*nvidia*")) for folder in CDI),
        any(os.path.exists(mark) for mark in MARKS),
    )


def _docker() -> "tuple[str, str]":
    try:
        ran = command.run(["docker", "info", "--format", "{{.CgroupDriver}}"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return "", ""
    output = ran.output.strip()
    return (output, "docker") if output in ("systemd", "cgroupfs") else ("", "")


def _containerd() -> "tuple[str, str]":
    try:
        with open(CONTAINERD, errors="replace") as file:
            match = re.search(r"^\s*SystemdCgroup\s*=\s*(true|false)", file.read(262144), re.MULTILINE)
    except OSError:
        return "", ""
    return ("systemd" if match.group(1) == "true" else "cgroupfs", "containerd") if match else ("", "")


def _toolkit() -> str:
    try:
        ran = command.run(["nvidia-ctk", "--version"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return ""
    match = re.search(r"version (\d+\.\d+\.\d+)", ran.output + ran.error)
    return match.group(1) if match else ""
