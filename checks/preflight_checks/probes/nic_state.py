"""The state of each network interface: speed, bonding, error counters, driver, and its kernel settings.

Everything is read from /sys and /proc, if they show this network namespace, and from the ethtool ioctl, which needs no
privilege. A field is None, or empty, if the kernel does not report it.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.process import read_number, read_text
from preflight.agent.wire import ProbeUnavailable

NET = "/sys/class/net"
CONF = "/proc/sys/net/ipv4/conf"
#: A node with more interfaces is a container host; theirs do not belong to the job.
MAX_INTERFACES = 64
_SIOCETHTOOL, _GDRVINFO = 0x8946, 0x3
_COUNTERS = ("rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors")


@dataclass(frozen=True)
class Member:
    """One member of a bond, and whether the bond considers its link up."""

    name: str
    up: bool | None
    speed_mbps: int | None = None


@dataclass(frozen=True)
class NicState:
    """One interface. `bond_mode` is empty if it is not a bond; otherwise `members` are its slaves.

    `counters` are those of /sys/class/net/NAME/statistics since the driver was loaded.
    """

    name: str
    speed_mbps: int | None = None
    duplex: str = ""
    driver: str = ""
    firmware: str = ""
    carrier_changes: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    bond_mode: str = ""
    members: list[Member] = field(default_factory=list)
    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None


@dataclass(frozen=True)
class NicStates:
    """All interfaces but loopback and veth pairs; `policy_rules` counts routing rules beyond the three of every kernel.

    `left_out` counts interfaces beyond the first MAX_INTERFACES.
    """

    interfaces: list[NicState]
    policy_rules: int | None = None
    left_out: int = 0


@cheap("node")
def nic_states(params: dict[str, Any]) -> NicStates:
    """The state of every interface. Raises ProbeUnavailable if /sys does not show this network namespace."""
    try:
        names = sorted(os.listdir(NET))
    except OSError as error:
        kind = "denied" if isinstance(error, PermissionError) else "missing"
        raise ProbeUnavailable(kind, f"{NET} cannot be listed: {error.strerror}") from None
    ours = [name for name in names if name != "lo" and not name.startswith("veth") and is_own_interface(name)]
    if not ours and any(name != "lo" and _exists(name) is False for name in names):
        raise ProbeUnavailable("missing", f"{NET} shows the interfaces of another network namespace")
    return NicStates(
        [_state(name) for name in ours[:MAX_INTERFACES]], _policy_rules(), max(0, len(ours) - MAX_INTERFACES)
    )


@dataclass(frozen=True)
class Carriers:
    """How often each interface lost or found its carrier since it exists; each loss counts twice."""

    changes: dict[str, int] = field(default_factory=dict)


@cheap("node")
def carriers(params: dict[str, Any]) -> Carriers:
    """The carrier changes so far. Raises ProbeUnavailable if /sys does not show this network namespace."""
    return Carriers(
        {
            state.name: state.carrier_changes
            for state in nic_states(params).interfaces
            if state.carrier_changes is not None
        }
    )


def is_own_interface(name: str) -> bool:
    """Whether /sys shows our interface of this name, and not that of another network namespace."""
    return _exists(name) is True and read_number(os.path.join(NET, name, "ifindex")) == socket.if_nametoindex(name)


def _exists(name: str) -> bool | None:
    if not os.path.isdir(os.path.join(NET, name)):
        return None  # such as the file bonding_masters
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def _state(name: str) -> NicState:
    folder = os.path.join(NET, name)
    driver, firmware = driver_of(name)
    counts = {counter: read_number(os.path.join(folder, "statistics", counter)) for counter in _COUNTERS}
    counters = {counter: count for counter, count in counts.items() if count is not None}
    mode, members = _bond(folder)
    return NicState(
        name,
        _speed(folder),
        read_text(os.path.join(folder, "duplex")),
        driver,
        firmware,
        read_number(os.path.join(folder, "carrier_changes")),
        counters,
        mode,
        members,
        _effective(name, "rp_filter"),
        _effective(name, "arp_ignore"),
        _effective(name, "arp_announce"),
    )


def _bond(folder: str) -> tuple[str, list[Member]]:
    """The mode of a bond (`802.3ad`) and its members; empty for anything else."""
    mode = read_text(os.path.join(folder, "bonding", "mode")).split(" ")[0]
    members: list[Member] = []
    for name in read_text(os.path.join(folder, "bonding", "slaves")).split():
        other = os.path.join(NET, name)
        status = read_text(os.path.join(other, "bonding_slave", "mii_status"))
        members.append(Member(name, None if not status else status == "up", _speed(other)))
    return mode, members


def driver_of(name: str) -> tuple[str, str]:
    """Driver and firmware version, as `ethtool -i` shows them; empty if the interface has none."""
    answer = array.array("B", struct.pack("=I192x", _GDRVINFO))
    address, _length = answer.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            fcntl.ioctl(plain.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", name.encode()[:15], address))
    except (OSError, struct.error):
        return "", ""
    return parse_driver(answer.tobytes())


def parse_driver(data: bytes) -> tuple[str, str]:
    """Parse driver and firmware from a `struct ethtool_drvinfo`."""

    def text(at: int) -> str:
        return data[at : at + 32].split(b"\0")[0].decode("utf-8", "replace").strip()

    firmware = text(68)
    return text(4), "" if firmware in ("N/A", "n/a") else firmware


def _effective(name: str, setting: str) -> int | None:
    """The larger of the interface's own value and that of `all`, which is the kernel's rule."""
    found = [read_number(os.path.join(CONF, which, setting)) for which in ("all", name)]
    known = [value for value in found if value is not None]
    return max(known) if len(known) == 2 else None


def _speed(folder: str) -> int | None:
    speed = read_number(os.path.join(folder, "speed"))
    return speed if speed is not None and speed > 0 else None


def _policy_rules() -> int | None:
    """Routing rules for IPv4 beyond local, main and default; None if netlink does not report them."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
            netlink.settimeout(1.0)
            netlink.send(struct.pack("=IHHII", 16 + len(body), 34, 0x301, 1, 0) + body)
            count = 0
            while True:
                found, more = parse_rules(netlink.recv(65536))
                count += found
                if not more:
                    return max(0, count - 3)
    except (OSError, AttributeError, struct.error):
        return None


def parse_rules(data: bytes) -> tuple[int, bool]:
    """The number of rules in one netlink answer, and whether more answers follow. Raises OSError for a refusal."""
    at = count = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < 16:
            break
        if kind == 3:
            return count, False
        if kind == 2:
            raise OSError("netlink refused to list routing rules")
        count += kind == 32
        at += (length + 3) & ~3
    return count, bool(data)
