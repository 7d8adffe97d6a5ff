"""The machine of a node: identity, system, processors, memory, and kernel settings that affect the ranks' speed."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.command import run
from preflight.agent.process import RECENT_S, command_in, list_folder, read_text, stat_lines
from preflight.agent.wire import ProbeUnavailable

PROC = "/proc"
SYS = "/sys"
ETC = "/etc"
_MAX_CPUS = 4096
#: The keys under which the kernel describes processors other than x86.
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
    """One node. Empty strings and None mean that this system does not report the value.

    `governors` counts the CPUs under each frequency governor; `virtual`: whether a hypervisor runs the machine;
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
    """Return the machine as the agent sees it, without running tools or needing root."""
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
    """Return the name and version of the distribution: `ubuntu 22.04`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found[name.strip()] = value.strip().strip("\"'")
    return " ".join(filter(None, (found.get("ID", ""), found.get("VERSION_ID", ""))))


def numa_nodes(sys: str) -> list[NumaNode]:
    """Return the memory nodes, by number."""
    folder = sys + "/devices/system/node"
    nodes: list[NumaNode] = []
    for name in list_folder(folder):
        if not name.startswith("node") or not name[4:].isdecimal():
            continue
        total: int | None = None
        for line in read_text(f"{folder}/{name}/meminfo").splitlines():
            words = line.split()
            if "MemTotal:" in words[:-1]:
                total = _kib(words[words.index("MemTotal:") + 1])
        cpus = _count(read_text(f"{folder}/{name}/cpulist")) or 0
        nodes.append(NumaNode(int(name[4:]), cpus, total))
    return sorted(nodes, key=lambda node: node.number)


def governors(sys: str) -> dict[str, int]:
    """Return the number of CPUs under each frequency governor; empty if frequencies are not controlled."""
    folder = sys + "/devices/system/cpu"
    names = [name for name in list_folder(folder) if name.startswith("cpu") and name[3:].isdecimal()][:_MAX_CPUS]
    texts = (read_text(f"{folder}/{name}/cpufreq/scaling_governor") for name in names)
    return dict(sorted(Counter(text for text in texts if text).items()))


#: Settings for a user's processes and shared memory when the last session ends (logind.conf(5)).
_LOGIND = ("KillUserProcesses", "RemoveIPC")


def logind_settings(etc: str) -> dict[str, str]:
    """Return the two settings of systemd-logind that are configured; for others its defaults apply."""
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

    `fqdn` is the result of Python's socket.getfqdn(), which torchrun publishes; empty if that took too long. `place` is
    the same for two processes that share machine, network and process namespaces: kernel boot id and namespaces.
    """

    hostname: str
    fqdn: str = ""
    fqdn_took_s: float = 0.0
    machine_id: str = ""
    boot_id: str = ""
    place: str = ""


@cheap("node", sends_requests=True)
def identity(params: dict[str, Any]) -> Identity:
    """Return the identity of this node."""
    limit_s = float(params.get("limit_s", FQDN_TIMEOUT_S))
    answer: dict[str, str] = {}
    started_at = time.monotonic()
    thread = threading.Thread(target=lambda: answer.update(fqdn=socket.getfqdn()), daemon=True)
    thread.start()
    thread.join(limit_s)
    boot = read_text(BOOT_ID)
    spaces = [_namespace(kind) for kind in ("net", "pid", "uts")]
    return Identity(
        socket.gethostname(),
        answer.get("fqdn", ""),
        round(time.monotonic() - started_at, 3),
        read_text(MACHINE_ID),
        boot,
        " ".join([boot, *spaces]) if boot and all(spaces) else "",
    )


def _namespace(kind: str) -> str:
    try:
        return os.readlink(os.path.join(NAMESPACES, kind))
    except OSError:
        return ""


# Whether this node's clock is synchronised: the kernel's status, and the running time daemon.


#: Daemons that adjust the clock, by the kernel's name for their process (cut after 15 characters).
DAEMONS = ("chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "ntpd-rs-daemon", "openntpd", "timemaster")
_FULL_NAMES = {"systemd-timesyn": "systemd-timesyncd"}
#: <sys/timex.h>: the kernel's clock has not been confirmed for a while.
_STA_UNSYNC = 0x0040
_TIMEX_BYTES = 208
#: After `modes` and four longs.
_STATUS_OFFSET = 40
_CHRONYC_S = 1.5


@dataclass(frozen=True)
class Clock:
    """The state of this clock's synchronization.

    `synchronised` is None if the kernel may not be queried (`problem` is the reason). `daemons` are the visible time
    daemons; `daemon_says` is the status that chronyd reports.
    """

    synchronised: bool | None = None
    problem: str = ""
    daemons: tuple[str, ...] = ()
    daemon_says: str = ""


@cheap("node", sends_requests=True)
def clock(params: dict[str, Any]) -> Clock:
    """Return the state of this node's clock."""
    daemons = tuple(running_daemons())
    status = ""
    if "chronyd" in daemons:
        try:
            status = leap_status(run(["chronyc", "-n", "tracking"], deadline_s=_CHRONYC_S).output)
        except ProbeUnavailable as why:
            status = why.reason
    try:
        return Clock(is_synchronised(), "", daemons, status)
    except OSError as error:
        return Clock(None, error.strerror or str(error), daemons, status)


def is_synchronised() -> bool:
    """Return whether adjtimex(2) reports a synchronized clock. Raises OSError if that may not be queried."""
    if struct.calcsize("P") != 8:
        raise OSError(0, "the clock's state is only read on 64-bit systems")
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "adjtimex"):
        raise OSError(0, "this C library has no adjtimex")
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = library.adjtimex(buffer)
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return parse_timex(buffer.raw)


def parse_timex(data: bytes) -> bool:
    """Parse the status in the bytes of a struct timex of a 64-bit kernel."""
    (status,) = struct.unpack_from("=i", data, _STATUS_OFFSET)
    return not status & _STA_UNSYNC


def leap_status(text: str) -> str:
    """Parse the leap status in the output of `chronyc tracking`; empty if the output has none."""
    leap = re.search(r"^Leap status\s*:\s*(\S.*?)\s*$", text, re.MULTILINE)
    return leap.group(1) if leap else ""


def running_daemons() -> list[str]:
    """Return the time daemons among the visible processes. In a container, some daemons may not be visible."""
    commands = {command_in(line) for line in stat_lines(RECENT_S).values()}
    return sorted(_FULL_NAMES.get(name, name) for name in DAEMONS if name.encode("ascii") in commands)
