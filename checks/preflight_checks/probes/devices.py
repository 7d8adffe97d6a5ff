"""The device nodes of NVIDIA's driver, and the NVSwitches of this node with the Fabric Manager that sets them up."""

from __future__ import annotations

import glob
import os
import re
import stat
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Generator

from preflight.agent import command
from preflight.agent.cheap import cheap, run_with_pauses
from preflight.agent.process import PROC, last_snapshot, parse_stat, read_number, read_text, stat_lines, text
from preflight.agent.wire import ProbeUnavailable

DEV = "/dev"
CONTAINERD = "/etc/containerd/config.toml"
CDI = ("/etc/cdi", "/var/run/cdi")
MARKS = ("/.dockerenv", "/run/.containerenv")
_TOOL_S = 2.0


@dataclass(frozen=True)
class DeviceNodes:
    """The device nodes: `nodes` are the driver's character devices, `unlinked` those without a link in /dev/char.

    `cgroup_driver` is `systemd`, `cgroupfs`, or empty if no container engine reports it; `engine` is its source. `cdi`:
    whether an NVIDIA CDI specification exists; `container`: whether this process is in a container.
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
    match = re.search(r"^\s*SystemdCgroup\s*=\s*(true|false)", read_text(CONTAINERD, 262144), re.MULTILINE)
    return ("systemd" if match.group(1) == "true" else "cgroupfs", "containerd") if match else ("", "")


def _version(tool: str, pattern: str) -> str:
    try:
        ran = command.run([tool, "--version"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return ""
    match = re.search(pattern, ran.output + ran.error)
    return match.group(1) if match else ""


SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
PCI = "/sys/bus/pci/devices"
PROC_FOLDER = "/proc"
_NVIDIA, _BRIDGE = "0x10de", "0x068000"
#: The kernel keeps 15 characters of a command's name.
_PROCESS = "nv-fabricmanager"[:15]


@dataclass(frozen=True)
class Fabric:
    """The switches to set up, and the service that does it.

    `running` is None if the machine's processes are not visible from here; `service` is systemd's state of the unit,
    `version` that of the installed Fabric Manager; both are empty if unknown.
    """

    switches: int
    running: bool | None = None
    service: str = ""
    version: str = ""


def fabric(params: dict[str, Any]) -> Fabric:
    """Find switches in the driver's list or, without one, by PCI class. If there are none, nothing else is queried."""
    switches = len(glob.glob(os.path.join(SWITCHES, "*"))) or _switches_by_pci_class()
    if not switches:
        return Fabric(0)
    return Fabric(switches, _is_manager_running(), _service(), _version("nv-fabricmanager", r"(\d+\.\d+(?:\.\d+)?)"))


def _switches_by_pci_class() -> int:
    return sum(
        read_text(os.path.join(device, "class")) == _BRIDGE and read_text(os.path.join(device, "vendor")) == _NVIDIA
        for device in glob.glob(os.path.join(PCI, "*"))
    )


def _is_manager_running() -> bool | None:
    if any(read_text(path) == _PROCESS for path in glob.glob(os.path.join(PROC_FOLDER, "[0-9]*", "comm"))):
        return True
    return False if read_text(os.path.join(PROC_FOLDER, "2", "comm")) == "kthreadd" else None


def _service() -> str:
    try:
        ran = command.run(["systemctl", "is-active", "nvidia-fabricmanager"], deadline_s=_TOOL_S)
    except ProbeUnavailable:
        return ""
    word = ran.output.strip()
    return word if re.match(r"(active|inactive|failed|activating|deactivating|reloading)$", word) else ""


# PCI bridges above GPUs and network cards that redirect peer traffic (ACS), and the mode of the IOMMU. ACS is in
# the extended configuration space, which only root may read: otherwise the bridges count as unreadable. The mode of
# the IOMMU needs no privilege.


DEVICES = "/sys/bus/pci/devices"
CPUINFO = "/proc/cpuinfo"
CMDLINE = "/proc/cmdline"
_ACS = 0x000D
#: Bits of the control register that redirect requests or completions between peers to the root (PCIe, 7.7.7.3).
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
        virtual: whether this is a virtual machine, whose bridges are not the physical ones.
        kernel_options: the kernel options that concern the IOMMU.
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
    """Return the PCI bridges between GPUs and RDMA cards. Raises ProbeUnavailable without a PCI bus in /sys."""
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
        control = acs_control(_read_bytes(os.path.join(DEVICES, name, "config")))
        if control is None:
            unreadable.append(name)
        elif control & _REDIRECT:
            redirecting.append(name)
    types = {_text_of(name, "iommu_group/type") for name in gpus + cards} - {""}
    places = {name: read_number(os.path.join(DEVICES, name, "numa_node")) for name in gpus + cards}
    numa = {name: place for name, place in places.items() if place is not None}
    return Pci(gpus, cards, bridges, redirecting, unreadable, sorted(types), _is_virtual_machine(), _options(), numa)


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register in a device's configuration space; 0 if it has none, None if the space is cut
    off.
    """
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


def _is_virtual_machine() -> bool | None:
    """Return whether the processor reports a hypervisor; None if unknown."""
    text = read_text(CPUINFO)
    flags = [line for line in text.splitlines() if line.startswith("flags")]
    return "hypervisor" in flags[0].split() if flags else None


def _options() -> list[str]:
    return [word for word in read_text(CMDLINE).split() if "iommu" in word]


def _text_of(name: str, file: str) -> str:
    return read_text(os.path.join(DEVICES, name, file))


def _read_bytes(path: str, max_bytes: int = 4096) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes)
    except OSError:
        return b""


# The load of a node before the job starts: load average, processes that compute or are stuck.


#: Two snapshots at least this far apart distinguish current activity from past activity.
INTERVAL_S = 0.3
#: The agent's own snapshot, at its start, is the first of the two unless it is older: an older one misses processes
#: that have started, or become idle, since.
MAX_SNAPSHOT_AGE_S = 2.0
#: A process that uses less than this share of one core in that time is ignored.
_HEAVY = 0.3
_MAX_LISTED = 16
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Busy:
    """A foreign process that uses cores, or is stuck in the kernel (`state` D)."""

    pid: int
    command: str
    uid: int
    cores: float = 0.0
    state: str = ""


@dataclass(frozen=True)
class Activity:
    """The activity of a node.

    `heavy` are processes that do not belong to this agent; `stuck` those in uninterruptible sleep in both snapshots,
    without progress in between. None means that this system does not report it.
    """

    load: float | None = None
    cores: int | None = None
    heavy: list[Busy] = field(default_factory=list)
    heavy_cores: float = 0.0
    stuck: list[Busy] = field(default_factory=list)


def _snapshots(params: dict[str, Any]) -> Generator[float, None, Activity]:
    first, began = last_snapshot(MAX_SNAPSHOT_AGE_S)
    yield max(0.0, began + INTERVAL_S - time.monotonic())
    second, elapsed = stat_lines(), time.monotonic() - began
    heavy: list[Busy] = []
    stuck: list[Busy] = []
    ticks = os.sysconf("SC_CLK_TCK")

    def parent_of(pid: int) -> int:
        stat = parse_stat(second.get(pid, b""))
        return stat.parent if stat is not None else 0

    for pid, line in second.items():
        state = _state(line)
        # Most have done nothing, and have the same line; comparing it is quicker than parsing it.
        if line == first.get(pid, line) and state != b"D":
            continue
        before, now = parse_stat(first.get(pid, b"")), parse_stat(line)
        if before is None or now is None or before.started != now.started:
            continue
        cores = (now.ticks - before.ticks) / ticks / elapsed
        is_stuck = now.state == before.state == "D" and now.ticks == before.ticks
        if (cores < _HEAVY and not is_stuck) or belongs_to_check(pid, parent_of, os.getpid(), os.getppid()):
            continue
        if cores >= _HEAVY:
            heavy.append(Busy(pid, now.command, _owner(pid), round(cores, 2)))
        if is_stuck:
            stuck.append(Busy(pid, now.command, _owner(pid), state="D"))
    heavy.sort(key=lambda busy: -busy.cores)
    return Activity(
        _number(text("loadavg").split(" ")[0]),
        os.cpu_count(),
        heavy[:_MAX_LISTED],
        round(sum(busy.cores for busy in heavy), 2),
        stuck[:_MAX_LISTED],
    )


@cheap("node", looks=_snapshots)
def activity(params: dict[str, Any]) -> Activity:
    """Take two snapshots of all processes, at least APART_S apart."""
    return run_with_pauses(_snapshots(params))


def _state(line: bytes) -> bytes:
    return line[line.rfind(b")") + 2 :][:1]


def belongs_to_check(pid: int, parent_of: Callable[[int], int], own_pid: int, agent: int) -> bool:
    """Return whether a process is this one or its agent, a child of either, or an ancestor of the agent."""
    for start, wanted in ((pid, (own_pid, agent)), (agent, (pid,))):
        at, steps = start, 0
        while at > 1 and steps < _MAX_DEPTH:
            if at in wanted:
                return True
            at, steps = parent_of(at), steps + 1
    return False


def _owner(pid: int) -> int:
    try:
        return os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return -1


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
