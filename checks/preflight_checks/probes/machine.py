"""The machine of a node: identity, system, processors, memory, and kernel settings that affect the speed of ranks."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.process import list_folder, read_text

PROC = "/proc"
SYS = "/sys"
ETC = "/etc"
_MAX_CPUS = 4096
#: Where the kernel describes processors other than x86.
_MODEL_KEYS = ("model name", "cpu model", "Processor", "cpu")


@dataclass(frozen=True)
class NumaNode:
    """One memory node: the number of its CPUs and the size of its memory."""

    number: int
    cpus: int
    memory_bytes: int | None


@dataclass(frozen=True)
class Memory:
    """The machine's memory in bytes; None if the kernel does not report it."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None


@dataclass(frozen=True)
class Machine:
    """One node. Empty texts and None mean that this system does not report it.

    `governors` counts the CPUs under each frequency governor; `virtual` means that a hypervisor runs the machine;
    `features` are those of the first processor (`avx512f`).
    """

    kernel: str
    architecture: str
    system: str = ""
    c_library: str = ""
    processor: str = ""
    online_cpus: int | None = None
    present_cpus: int | None = None
    sockets: int | None = None
    virtual: bool = False
    numa: list[NumaNode] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    governors: dict[str, int] = field(default_factory=dict)
    clock_source: str = ""
    killed_for_memory: int | None = None
    logind: dict[str, str] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)


@cheap("node")
def machine(params: dict[str, Any]) -> Machine:
    """The machine as the agent sees it; no tool is run, and nothing needs root."""
    system = os.uname()
    cpuinfo = parse_cpuinfo(read_text(PROC + "/cpuinfo", 1 << 20))
    statistics = _pairs(read_text(PROC + "/vmstat"))
    return Machine(
        system.release,
        system.machine,
        parse_os_release(read_text(ETC + "/os-release")),
        _c_library(),
        cpuinfo.model,
        _count(read_text(SYS + "/devices/system/cpu/online")),
        _count(read_text(SYS + "/devices/system/cpu/present")),
        cpuinfo.sockets,
        cpuinfo.virtual,
        numa_nodes(SYS),
        parse_meminfo(read_text(PROC + "/meminfo")),
        governors(SYS),
        read_text(SYS + "/devices/system/clocksource/clocksource0/current_clocksource"),
        statistics.get("oom_kill"),
        logind_settings(ETC),
        cpuinfo.features,
    )


@dataclass(frozen=True)
class _CpuInfo:
    model: str
    sockets: int | None
    virtual: bool
    features: list[str]


def parse_cpuinfo(text: str) -> _CpuInfo:
    """Parse /proc/cpuinfo: model and features, the number of sockets, and whether a hypervisor is reported."""
    models: dict[str, str] = {}
    sockets = set()
    features: list[str] = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key in _MODEL_KEYS and value:
            models.setdefault(key, value)
        elif key == "physical id":
            sockets.add(value)
        elif key in ("flags", "Features") and not features:
            features = sorted(set(value.split()))
    model = next((models[key] for key in _MODEL_KEYS if key in models), "")
    return _CpuInfo(" ".join(model.split()), len(sockets) or None, "hypervisor" in features, features)


def parse_meminfo(text: str) -> Memory:
    """Parse the machine's memory from /proc/meminfo, which counts in KiB."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    available = found.get("MemAvailable", found.get("MemFree"))
    return Memory(found.get("MemTotal"), available, found.get("SwapTotal"), found.get("SwapFree"))


def parse_os_release(text: str) -> str:
    """Name and version of the distribution: `ubuntu 22.04`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found[name.strip()] = value.strip().strip("\"'")
    return " ".join(filter(None, (found.get("ID", ""), found.get("VERSION_ID", ""))))


def numa_nodes(sys: str) -> list[NumaNode]:
    """The memory nodes, by number."""
    folder = sys + "/devices/system/node"
    found: list[NumaNode] = []
    for name in list_folder(folder):
        if not name.startswith("node") or not name[4:].isdecimal():
            continue
        total: int | None = None
        for line in read_text(f"{folder}/{name}/meminfo").splitlines():
            words = line.split()
            if "MemTotal:" in words[:-1]:
                total = _kib(words[words.index("MemTotal:") + 1])
        cpus = _count(read_text(f"{folder}/{name}/cpulist")) or 0
        found.append(NumaNode(int(name[4:]), cpus, total))
    return sorted(found, key=lambda node: node.number)


def governors(sys: str) -> dict[str, int]:
    """The number of CPUs under each governor of clock frequencies; empty if the system does not control frequencies."""
    folder = sys + "/devices/system/cpu"
    names = [name for name in list_folder(folder) if name.startswith("cpu") and name[3:].isdecimal()][:_MAX_CPUS]
    texts = (read_text(f"{folder}/{name}/cpufreq/scaling_governor") for name in names)
    return dict(sorted(Counter(text for text in texts if text).items()))


#: What systemd does to a user's processes and shared memory when their last session ends (logind.conf(5)).
_LOGIND = ("KillUserProcesses", "RemoveIPC")


def logind_settings(etc: str) -> dict[str, str]:
    """The two settings of systemd-logind if they are configured; otherwise its defaults apply."""
    found: dict[str, str] = {}
    drop_ins = [f"{etc}/systemd/logind.conf.d/{name}" for name in list_folder(etc + "/systemd/logind.conf.d")]
    for path in [etc + "/systemd/logind.conf", *sorted(drop_ins)]:
        for line in read_text(path).splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip() in _LOGIND:
                found[name.strip()] = value.strip().lower()
    return found


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ""


def _kib(word: str) -> int | None:
    return int(word) * 1024 if word.isdecimal() else None


def _count(text: str) -> int | None:
    """Count the numbers in a list such as `0-3,8`."""
    total = 0
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal():
            total += int(last) - int(first) + 1 if dash and last.isdecimal() else 1
    return total or None


def _pairs(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            found[name] = int(value)
    return found


MACHINE_ID = "/etc/machine-id"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
NAMESPACES = "/proc/self/ns"
#: The full name is found by a reverse lookup; a dead name server costs 10 s and more.
FQDN_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Identity:
    """Names and ids of this node; empty if there is none.

    `fqdn` is the result of Python's socket.getfqdn(), which torchrun publishes; empty if that took too long.
    `place` is the same for two processes that share machine, network and processes: kernel boot and namespaces.
    """

    hostname: str
    fqdn: str = ""
    fqdn_took_s: float = 0.0
    machine_id: str = ""
    boot_id: str = ""
    place: str = ""


@cheap("node", sends_requests=True)
def identity(params: dict[str, Any]) -> Identity:
    """The identity of this node."""
    limit_s = float(params.get("limit_s", FQDN_TIMEOUT_S))
    answer: dict[str, str] = {}
    began = time.monotonic()
    thread = threading.Thread(target=lambda: answer.update(fqdn=socket.getfqdn()), daemon=True)
    thread.start()
    thread.join(limit_s)
    boot = read_text(BOOT_ID)
    spaces = [_namespace(kind) for kind in ("net", "pid", "uts")]
    return Identity(
        socket.gethostname(),
        answer.get("fqdn", ""),
        round(time.monotonic() - began, 3),
        read_text(MACHINE_ID),
        boot,
        " ".join([boot, *spaces]) if boot and all(spaces) else "",
    )


def _namespace(kind: str) -> str:
    try:
        return os.readlink(os.path.join(NAMESPACES, kind))
    except OSError:
        return ""
