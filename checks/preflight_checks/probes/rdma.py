"""RDMA devices as the kernel shows them in /sys/class/infiniband: ports, rates, GIDs, counters, firmware.

The state of a port comes from the card's firmware, and a wedged card does not respond, so each device is read in its
own thread, and a late device is recorded as such without affecting the others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from preflight.agent import command as tool
from preflight.agent.process import list_folder, read_numbers, read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.gpus import kernel_driver
from preflight_checks.probes.links import command, exchange_hello, family_of
from preflight_checks.probes.ports import is_listening

INFINIBAND = "/sys/class/infiniband"
#: A healthy device is read in milliseconds, its table of GIDs included.
DEVICE_S = 3.5
#: Tables have up to 256 entries, nearly all empty.
MAX_GIDS = 256
_COUNTERS = (
    "link_downed",
    "symbol_error",
    "local_link_integrity_errors",
    "link_error_recovery",
    "port_rcv_errors",
    "excessive_buffer_overrun_errors",
)
_NO_GUID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Gid:
    """One entry of a port's table. `version` is 1 or 2 for RoCE, 0 for InfiniBand or if unknown."""

    index: int
    gid: str
    version: int = 0
    interface: str = ""


@dataclass(frozen=True)
class RdmaPort:
    """One port. `state` is `ACTIVE`, `DOWN`, ...; `physical` `LinkUp`, `Polling`, `Disabled`, ...

    `gids` omits empty entries. `counters` are those of the port since the driver was loaded.
    """

    number: int
    state: str = ""
    physical: str = ""
    rate_gbps: float | None = None
    rate_text: str = ""
    link_layer: str = ""
    gids: list[Gid] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Return whether the port can carry data."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class RdmaDevice:
    """One device (HCA). `problem` is why nothing more is known about it."""

    name: str
    driver: str = ""
    firmware: str = ""
    board: str = ""
    pci: str = ""
    ports: list[RdmaPort] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class RdmaDevices:
    """All devices by name; none if the kernel has no RDMA at all."""

    devices: list[RdmaDevice]


def rdma(params: dict[str, Any]) -> RdmaDevices:
    """Return the RDMA devices of this node. Raises ProbeUnavailable if /sys/class/infiniband cannot be listed."""
    try:
        names = sorted(os.listdir(INFINIBAND), key=_by_number)
    except FileNotFoundError:
        return RdmaDevices([])
    except OSError as error:
        raise ProbeUnavailable("denied", f"{INFINIBAND} cannot be listed: {error.strerror}") from None
    found: dict[str, RdmaDevice] = {}
    threads = [threading.Thread(target=_read_device, args=(name, found), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + float(params.get("device_s", DEVICE_S))
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    late = "its driver did not respond within {:g} s".format(float(params.get("device_s", DEVICE_S)))
    return RdmaDevices([found.get(name) or RdmaDevice(name, problem=late) for name in names])


def _by_number(name: str) -> Any:
    """Sort key: mlx5_2 comes before mlx5_10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1), name


def _read_device(name: str, devices: dict[str, RdmaDevice]) -> None:
    devices[name] = _device(name)


def _device(name: str) -> RdmaDevice:
    folder = os.path.join(INFINIBAND, name)
    try:
        numbers = sorted(int(port) for port in os.listdir(os.path.join(folder, "ports")) if port.isdecimal())
    except OSError as error:
        return RdmaDevice(name, problem=f"its ports cannot be listed: {error.strerror}")
    return RdmaDevice(
        name,
        _link_target(os.path.join(folder, "device", "driver")),
        read_text(os.path.join(folder, "fw_ver")),
        read_text(os.path.join(folder, "board_id")) or read_text(os.path.join(folder, "hca_type")),
        _link_target(os.path.join(folder, "device")),
        [_port(os.path.join(folder, "ports", str(number)), number) for number in numbers],
    )


def _link_target(link: str) -> str:
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else ""


def _port(folder: str, number: int) -> RdmaPort:
    rate = read_text(os.path.join(folder, "rate"))
    return RdmaPort(
        number,
        after_number(read_text(os.path.join(folder, "state"))),
        after_number(read_text(os.path.join(folder, "phys_state"))),
        parse_rate(rate),
        rate,
        read_text(os.path.join(folder, "link_layer")),
        _gids(folder),
        read_numbers(os.path.join(folder, "counters"), _COUNTERS),
    )


def _gids(folder: str) -> list[Gid]:
    places = sorted(int(name) for name in list_folder(os.path.join(folder, "gids")) if name.isdecimal())
    gids: list[Gid] = []
    for index in places[:MAX_GIDS]:
        gid = read_text(os.path.join(folder, "gids", str(index)))
        if gid in ("", _NO_GUID):
            continue
        # "RoCE v2"; "IB/RoCE v1" means InfiniBand and also version 1 (kernel, ib_cache).
        kind = read_text(os.path.join(folder, "gid_attrs", "types", str(index)))
        version = 2 if kind.endswith("v2") else 1 if kind.endswith("v1") else 0
        gids.append(Gid(index, gid, version, read_text(os.path.join(folder, "gid_attrs", "ndevs", str(index)))))
    return gids


def after_number(text: str) -> str:
    """Return `ACTIVE` for `4: ACTIVE`."""
    return text.split(":", 1)[-1].strip()


def parse_rate(text: str) -> float | None:
    """Return 200.0 for `200 Gb/sec (4X HDR)`; None for anything other than a rate."""
    words = text.split()
    try:
        return float(words[0]) if len(words) > 1 and words[1].startswith("Gb/s") else None
    except ValueError:
        return None


# Whether a rank may use RDMA devices, and whether network cards can access GPU memory directly (GPUDirect RDMA).


NODES = "/dev/infiniband"
VERBS = "libibverbs.so.1"


@dataclass(frozen=True)
class RdmaAccess:
    """The devices and the library that a process in the job context may open.

    `nodes` are the uverbs device nodes, `refused` those that may not be opened, with the reason. `missing_library` is
    empty if libibverbs can be loaded.
    """

    nodes: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    missing_library: str = ""


def rdma_access(params: dict[str, Any]) -> RdmaAccess:
    """Return the devices that this process may open. Run it in the job context: a container may lack devices."""
    nodes = [name for name in list_folder(NODES) if name.startswith("uverbs")]
    refused: dict[str, str] = {}
    for name in nodes:
        try:
            # Opening gives a handle and starts nothing; verbs begin with the first ioctl.
            os.close(os.open(os.path.join(NODES, name), os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            refused[name] = error.strerror or errno.errorcode.get(error.errno or 0, "error")
    return RdmaAccess(nodes, refused, _library())


def _library() -> str:
    try:
        ctypes.CDLL(VERBS)
    except OSError as error:
        return str(error)
    return ""


#: The paths where NCCL looks for the peer-memory module (src/transport/net_ib/gdr.cc).
PEER_MEMORY = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
DRIVER = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class GpuDirect:
    """The NVIDIA driver (empty if not loaded), whether it is the open variant, and the `peer_memory` module for
    NCCL.
    """

    driver: str = ""
    open_modules: bool = False
    peer_memory: str = ""
    kernel: str = ""


def gpudirect(params: dict[str, Any]) -> GpuDirect:
    """Return the parts of GPUDirect RDMA on this node."""
    text = read_text(DRIVER)
    found = [path for path in PEER_MEMORY if os.path.exists(path)]
    return GpuDirect(kernel_driver(text), "Open Kernel Module" in text, found[0] if found else "", os.uname().release)


# RDMA writes between two nodes with perftest (`ib_write_bw`, `ib_write_lat`), one pair of ports after the other.
# perftest needs a process at both ends: the listener of the link probes starts the one on the peer for a client
# that knows its token, on a port that the kernel picks. Each process has a deadline; both exchange their addresses
# over TCP.


BANDWIDTH, LATENCY = "ib_write_bw", "ib_write_lat"
#: A gigabyte of writes: 20 ms at 400 Gbit/s, and 8 s at 1 Gbit/s, where the deadline ends it. One queue pair with
#: writes of 1 MiB stays at 284 of 400 Gbit/s on healthy cards, and fills them with 128 KiB (NVIDIA/nccl#2409).
_OPTIONS = {BANDWIDTH: ("-s", "131072", "-q", "4", "-n", "2000", "--report_gbits"), LATENCY: ("-s", "8", "-n", "1000")}
#: The longest run of one process, and of the one that waits for it.
RUN_S, SERVE_S = 5.0, 7.0
#: No further pair of ports is begun after this.
BUDGET_S = 4.0
CONNECT_S = 1.5
#: The time that the listener waits for its process to listen.
START_S = 1.5
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: Messages of perftest that show nothing about the link: the two processes could not communicate over TCP.
_NOT_CONNECTED = (
    "Couldn't connect",
    "Unable to init the socket connection",
    "Connection timed out",
    "No route to host",
)


@dataclass(frozen=True)
class RailSpeed:
    """A pair of ports: the average write rate in Gbit/s, the latency of small writes, and the problem if there are
    none.
    """

    device: str
    port: int
    peer_device: str
    peer_port: int
    gbps: float | None = None
    latency_us: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class RdmaSpeeds:
    """The measured pairs of ports between this node and a peer, and the number of pairs left out for lack of time."""

    peer: str
    address: str
    rails: list[RailSpeed] = field(default_factory=list)
    left_out: int = 0
    took_s: float = 0.0


def rdma_speed(params: dict[str, Any]) -> RdmaSpeeds:
    """Measure RDMA writes from this node to `params["peer"]` at `params["host"]`, where `listen` is running.

    `rails` lists pairs of ports: device, port and GID index here, then on the peer (with an index of -1, perftest
    chooses). Raises ProbeUnavailable: `missing` without perftest on either node, `blocked` without a connection.
    """
    peer, host = str(params["peer"]), str(params["host"])
    listening = (params.get("listening") or {}).get(peer)
    if listening is None:
        raise ProbeUnavailable(
            "blocked", str((params.get("unheard") or {}).get(peer, "no listener was started on that node"))
        )
    tool.run([BANDWIDTH, "--version"], deadline_s=2.0)
    started_at = time.monotonic()
    rails = [tuple(rail) for rail in params["rails"]]
    rail_speeds: list[RailSpeed] = []
    try:
        address = str(socket.getaddrinfo(host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)[0][4][0])
        with socket.socket(family_of(address), socket.SOCK_STREAM) as stream:
            stream.settimeout(CONNECT_S)
            stream.connect((address, int(listening["free"])))
            exchange_hello(stream, str(listening["token"]))
            stream.settimeout(START_S + 2.0)
            for rail in rails:
                if time.monotonic() - started_at > BUDGET_S:
                    break
                # The latency of one pair of ports stands for all: it takes as long as the writes.
                rail_speeds.append(_measure(stream, address, rail, latency=not rail_speeds))
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise ProbeUnavailable("blocked", "the connection to {} was lost: {}".format(peer, error or "closed")) from None
    return RdmaSpeeds(
        peer, address, rail_speeds, len(rails) - len(rail_speeds), round(time.monotonic() - started_at, 3)
    )


def _measure(stream: socket.socket, address: str, rail: tuple[Any, ...], *, latency: bool) -> RailSpeed:
    device, port, gid, far_device, far_port, far_gid = rail
    here, there = (str(device), int(port), int(gid)), (str(far_device), int(far_port), int(far_gid))
    ends = (here[0], here[1], there[0], there[1])
    gbps, problem = _run(stream, address, BANDWIDTH, here, there, parse_bandwidth)
    if gbps is None:
        return RailSpeed(*ends, problem=problem)
    late = _run(stream, address, LATENCY, here, there, parse_latency)[0] if latency else None
    return RailSpeed(*ends, gbps=gbps, latency_us=late)


def _run(
    stream: socket.socket,
    address: str,
    name: str,
    here: tuple[str, int, int],
    there: tuple[str, int, int],
    parse: Callable[[str], float | None],
) -> tuple[float | None, str]:
    """Run one tool once; return its measurement, or the problem."""
    answer = command(stream, do="perftest", tool=name, device=there[0], port=there[1], gid=there[2])
    if answer.get("error"):
        return None, "the peer: {}".format(answer["error"])
    try:
        ran = tool.run([*_words(name, here, int(answer["listens"])), address], deadline_s=RUN_S)
    except ProbeUnavailable as error:
        # The writes may be slow, or a firewall drops the TCP connection by which both ends find each other.
        also = " (slow writes, or a filtered TCP port)" if error.kind == "timeout" else ""
        return None, error.reason + also
    figure = parse(ran.output)
    if figure is not None and ran.exit_code == 0:
        return figure, ""
    lines = [line.strip() for line in (ran.error + "\n" + ran.output).splitlines() if line.strip(" -")]
    message = next((line for line in lines if any(mark in line for mark in _NOT_CONNECTED)), lines[-1] if lines else "")
    return None, "%s exited with code %d: %s" % (name, ran.exit_code, message[:200] or "no output")


def _words(name: str, end: tuple[str, int, int], tcp_port: int) -> list[str]:
    device, port, gid = end
    words = [name, "-d", device, "-i", str(port), "-p", str(tcp_port), "-F", *_OPTIONS[name]]
    return words + (["-x", str(gid)] if gid >= 0 else [])


def serve(words: dict[str, Any]) -> dict[str, Any]:
    """Start the listener's process for a run, which ends on its own or after `SERVE_S`; return its port or an error."""
    name, device = str(words["tool"]), str(words["device"])
    if name not in _OPTIONS or not _NAME.fullmatch(device):
        return {"error": "unknown tool or device"}
    with socket.socket() as free:
        free.bind(("", 0))
        tcp_port = int(free.getsockname()[1])
    failed: list[str] = []

    def run() -> None:
        try:
            end = (device, int(words["port"]), int(words["gid"]))
            ran = tool.run(_words(name, end, tcp_port), deadline_s=SERVE_S)
            lines = (ran.output + "\n" + ran.error).strip().splitlines()
            failed.append("%s exited with code %d: %s" % (name, ran.exit_code, lines[-1][:200] if lines else ""))
        except ProbeUnavailable as error:
            failed.append(error.reason)

    threading.Thread(target=run, daemon=True).start()
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and not failed:
        if is_listening(tcp_port):
            return {"listens": tcp_port}
        time.sleep(0.02)
    return {"error": failed[0] if failed else f"{name} did not start listening within {START_S:g} s"}


def parse_bandwidth(output: str) -> float | None:
    """Return the average in Gbit/s in the table that `ib_write_bw` prints; None if there is no table."""
    heading, values = _table(output)
    for index, title in enumerate(heading):
        if title.startswith("BW average") and index < len(values):
            # Old versions know no --report_gbits, and print units of 2^20 bytes.
            factor = 1.0 if "Gb/sec" in title else 8 * 2**20 / 1e9 if "MB/sec" in title or "MiB/sec" in title else None
            return round(values[index] * factor, 3) if factor is not None else None
    return None


def parse_latency(output: str) -> float | None:
    """Return the typical latency in microseconds in the table that `ib_write_lat` prints; None if there is no table."""
    heading, values = _table(output)
    for index, title in enumerate(heading):
        if title.startswith("t_typical") and index < len(values):
            return values[index]
    return None


_HEADING = re.compile(r"BW \w+ ?\[[^\]]+\]|\d[\d.]*% percentile\[[^\]]+\]|\S+")


def _table(output: str) -> tuple[list[str], list[float]]:
    """Return the last heading that begins with `#bytes`, and the numbers of the line that follows it."""
    heading: list[str] = []
    values: list[float] = []
    lines = output.splitlines()
    for place, line in enumerate(lines):
        if not line.strip().startswith("#bytes"):
            continue
        heading, values = _HEADING.findall(line), []
        for word in lines[place + 1].split() if place + 1 < len(lines) else []:
            try:
                values.append(float(word))
            except ValueError:
                break
    return heading, values
