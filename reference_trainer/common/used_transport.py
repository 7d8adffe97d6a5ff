"""The actual transport of a rank's bytes: the backend's own log, and the counters of the network cards.

Interfaces are counted by psutil if the rank's Python has it, otherwise from /proc: both show those of this process's
own network namespace, where /sys may show the host's. RDMA bypasses the interfaces, so ports are counted separately:
`port_xmit_data` and `port_rcv_data` in units of four bytes (InfiniBand Architecture, PortCounters;
Documentation/ABI/stable/sysfs-class-infiniband), for cards without these (Amazon's EFA) `tx_bytes` and `rx_bytes`. A
hung card does not answer, so ports are read in a thread that can be abandoned.

NCCL writes to the file that NCCL_DEBUG_FILE names (src/debug.cc). Here that file exists only in memory and disappears
with the rank. The subsystems INIT and NET contain what is needed: the selected network, its devices, and the transport
of each channel.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from typing import MutableMapping

from preflight.agent.process import list_folder, read_number

INTERFACES = "/proc/self/net/dev"
INFINIBAND = "/sys/class/infiniband"
#: Time limit for reading ports, which normally takes milliseconds.
PORTS_S = 1.5
_WORD = 4


@dataclass(frozen=True)
class CardCounters:
    """Bytes sent and received by interface (`eth0`) and RDMA port (`mlx5_0:1`); `problem`: why some are missing."""

    interfaces: dict[str, list[int]] = field(default_factory=dict)
    ports: dict[str, list[int]] = field(default_factory=dict)
    problem: str = ""


def count(interfaces: str = INTERFACES, infiniband: str = INFINIBAND) -> CardCounters:
    problems = []
    found = _by_psutil() if interfaces == INTERFACES else None
    if found is None:
        found = {}
        try:
            with open(interfaces) as file:
                found = parse_interfaces(file.read())
        except OSError as error:
            problems.append(f"{interfaces}: {error.strerror}")
    ports: dict[str, list[int]] = {}
    reader = threading.Thread(target=_read_ports, args=(infiniband, ports), daemon=True, name="preflight-ports")
    reader.start()
    reader.join(PORTS_S)
    if reader.is_alive():
        problems.append(f"an RDMA device did not respond within {PORTS_S:g} s")
    return CardCounters(found, dict(ports), "; ".join(problems))


def counted_between(before: CardCounters, after: CardCounters) -> CardCounters:
    """Return the difference between two counts, without counters that are new or decreased (after a reset)."""
    problems = [text for text in dict.fromkeys((before.problem, after.problem)) if text]
    return CardCounters(
        _differences(before.interfaces, after.interfaces), _differences(before.ports, after.ports), "; ".join(problems)
    )


def _differences(before: dict[str, list[int]], after: dict[str, list[int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, now in after.items():
        then = before.get(name)
        if then is not None and all(a >= b for a, b in zip(now, then)) and now != then:
            found[name] = [a - b for a, b in zip(now, then)]
    return found


def _by_psutil() -> dict[str, list[int]] | None:
    """Return bytes sent and received by interface as counted by psutil; None if it is not usable."""
    try:
        import psutil

        # Without `nowrap`, which would hide that a counter decreased.
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
    except Exception:  # A broken installation counts as none.
        return None
    return {name: [card.bytes_sent, card.bytes_recv] for name, card in counters.items()}


def parse_interfaces(text: str) -> dict[str, list[int]]:
    """Return bytes sent and received by interface, from /proc/net/dev: the first column is received, the ninth sent."""
    found: dict[str, list[int]] = {}
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")
        columns = rest.split()
        if colon and len(columns) >= 9 and columns[0].isdecimal() and columns[8].isdecimal():
            found[name.strip()] = [int(columns[8]), int(columns[0])]
    return found


def _read_ports(root: str, counters: dict[str, list[int]]) -> None:
    for device in list_folder(root):
        for port in list_folder(os.path.join(root, device, "ports")):
            counted = _port(os.path.join(root, device, "ports", port))
            if counted is not None:
                counters[f"{device}:{port}"] = list(counted)


def _port(folder: str) -> tuple[int, int] | None:
    sent = read_number(folder + "/counters/port_xmit_data")
    received = read_number(folder + "/counters/port_rcv_data")
    if sent is not None and received is not None:
        return sent * _WORD, received * _WORD
    sent, received = read_number(folder + "/hw_counters/tx_bytes"), read_number(folder + "/hw_counters/rx_bytes")
    return (sent, received) if sent is not None and received is not None else None


_VERSION = re.compile(r"NCCL version (\d[\w.]*)")
_USING = re.compile(r"NET/(\w+) : Using (\[0\].*)")
_DEVICE = re.compile(r"([\w.@-]+):(\d+)/(IB|RoCE)")
_ADDRESS = re.compile(r"\[\d+\]([^:\s\[\]]+):")
_NETWORK = re.compile(r"Using network ([^\r\n]+)")
_ASSIGNED = re.compile(r"Assigned NET plugin ([^\r\n]+?) to comm")
_VIA = re.compile(r"(?:Channel|Ring) \d[\d/]* : \d+\[\w+\] -> \d+\[\w+\].* via (\S+)")
_DIRECT = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA")
_WARNING = re.compile(r"NCCL WARN (.*)")
_MAX_WARNINGS, _MAX_LENGTH = 5, 200


@dataclass(frozen=True)
class NcclConnections:
    """The connections of one rank according to NCCL; all fields are empty without log output.

    Args:
        network: what carries data between nodes: `IB`, `Socket`, or the name of a plugin.
        devices: RDMA ports (`mlx5_0:1`) or interfaces (`eth0`) that this network uses.
        via: the number of channels by transport: `NET/IB`, `NET/Socket`, `P2P/CUMEM`, `SHM/direct` ...
        direct: whether the network accesses GPU memory directly; None if unknown.
        warnings: the first few warnings.
    """

    version: str = ""
    network: str = ""
    devices: list[str] = field(default_factory=list)
    via: dict[str, int] = field(default_factory=dict)
    direct: bool | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def sockets(self) -> bool:
        """Return whether data between nodes goes over plain sockets."""
        return self.network.lower().endswith("socket") or any(name.startswith("NET/Socket") for name in self.via)


def parse(text: str) -> NcclConnections:
    """Parse the log of one rank, written by NCCL 2.4 or newer."""
    version, network = "", ""
    devices: dict[str, list[str]] = {}
    via: dict[str, int] = {}
    direct: bool | None = None
    warnings: list[str] = []
    for line in text.splitlines():
        if "NCCL" not in line:
            continue
        version_match = _VERSION.search(line)
        if version_match:
            version = version or version_match.group(1)
        version_match = _USING.search(line)
        if version_match:
            devices.setdefault(version_match.group(1), _devices(version_match.group(2)))
        version_match = _NETWORK.search(line) or _ASSIGNED.search(line)
        if version_match:
            network = version_match.group(1).strip()
        version_match = _VIA.search(line)
        if version_match:
            kind = "/".join(version_match.group(1).split("/")[:2])
            via[kind] = via.get(kind, 0) + 1
        version_match = _DIRECT.search(line)
        if version_match:
            direct = direct is not False and version_match.group(1) == "Enabled"
        version_match = _WARNING.search(line)
        if version_match and len(warnings) < _MAX_WARNINGS:
            warnings.append(version_match.group(1).strip()[:_MAX_LENGTH])
    if not network and len(devices) == 1:
        (network,) = devices
    return NcclConnections(version, network, _network_devices(network, devices), via, direct, warnings)


def _devices(text: str) -> list[str]:
    """Return the names in `[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>` or `[0]eth0:10.0.0.1<0>`."""
    text = text.partition("; OOB")[0]
    ports = [f"{name}:{port}" for name, port, _ in _DEVICE.findall(text)]
    return ports or _ADDRESS.findall(text)


def _network_devices(network: str, devices: dict[str, list[str]]) -> list[str]:
    """Return the devices of the selected network: RDMA plugins (IBext) name devices as NCCL itself does."""
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
        # NCCL before 2.8 leaves its file buffered by the C library.
        ctypes.CDLL(None).fflush(None)
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, size, 0).decode("utf-8", "replace")


def _anonymous() -> tuple[int, str]:
    """Return an anonymous file, and the path under which this process can open it again."""
    try:
        fd = os.memfd_create("preflight-nccl")
    except (AttributeError, OSError):
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    return fd, f"/proc/self/fd/{fd}"


@dataclass(frozen=True)
class Transport:
    """How one rank was connected.

    Args:
        nccl: NCCL's own report; empty with another backend.
        carried: bytes that the node's cards carried while collectives were timed; empty if another rank counted.
        counted: whether this rank counted them, as one rank of each node does.
        crossing_bytes: the minimum that the node must have received from others meanwhile; 0 if all ranks share one
        node.
    """

    nccl: NcclConnections = field(default_factory=NcclConnections)
    carried: CardCounters = field(default_factory=CardCounters)
    counted: bool = False
    crossing_bytes: int = 0


class TransportWatcher:
    """Captures NCCL's log and reads the counters of the cards, for one rank."""

    def __init__(self) -> None:
        self._counts = False
        self._before: CardCounters | None = None
        self._after: CardCounters | None = None
        self._capture: Capture | None = None

    def listen(self, backend: str) -> None:
        """Capture NCCL's log; call before the backend starts."""
        if backend == "nccl":
            self._capture = Capture(os.environ)

    def begin(self, *, counts: bool) -> None:
        """Start counting transfers, on one rank of each machine."""
        self._counts = counts
        if counts:
            self._before = count()

    def end(self) -> None:
        if self._counts:
            self._after = count()

    def result(self, crossing_bytes: int) -> Transport:
        connections = parse(self._capture.text()) if self._capture is not None else NcclConnections()
        if self._before is None or self._after is None:
            return Transport(connections, crossing_bytes=crossing_bytes)
        return Transport(connections, counted_between(self._before, self._after), True, crossing_bytes)

    def print_warnings(self) -> None:
        """Write NCCL's warnings from memory to standard error, where the last output of a failed rank is read."""
        if self._capture is None:
            return
        for line in parse(self._capture.text()).warnings:
            sys.stderr.write(f"NCCL WARN {line}\n")
