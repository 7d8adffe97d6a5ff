"""The network interfaces of this node, as communication libraries see them, and the route to a host.

`getifaddrs` is used first, because NCCL, Gloo and TensorPipe all use its list, in its order. Facts from /sys are used
only if /sys shows this network namespace; in a container it may show another."""

from __future__ import annotations

import array
import ctypes
import fcntl
import ipaddress
import json
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.command import run
from preflight.agent.process import list_folder, read_number, read_numbers, read_text
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.names import lookup

UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40
_SIOCGIFMTU = 0x8921


@dataclass(frozen=True)
class Address:
    """An address with the length of its prefix in bits."""

    address: str
    prefix: int


@dataclass(frozen=True)
class Interface:
    """One interface. `kind` is `physical`, `virtual`, `bridge`, `loopback` or empty if unknown.

    A bridge with a physical port is called `virtual`: it leads out of the machine, as on a virtual machine host; a
    `bridge` connects only processes on this machine.

    `speed_mbps` is the driver's value; None if it reports none.
    """

    name: str
    up: bool
    running: bool
    loopback: bool
    addresses: list[Address] = field(default_factory=list)
    mtu: int | None = None
    speed_mbps: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class Interfaces:
    """All interfaces, in the order of `getifaddrs`."""

    interfaces: list[Interface]
    source: str = ""


@dataclass(frozen=True)
class Route:
    """The kernel's route to `destination`: over `interface`, from `source`.

    `problem` is `unresolved`, `timeout` or `no-route` if there is none.
    """

    destination: str
    address: str = ""
    interface: str = ""
    source: str = ""
    problem: str = ""
    detail: str = ""


@cheap("node")
def interfaces(params: dict[str, Any]) -> Interfaces:
    """Return every interface with its addresses. Raises ProbeUnavailable if no method of listing them works."""
    rows, source = _rows()
    if rows is None:
        raise ProbeUnavailable("missing", "neither getifaddrs nor `ip -j addr` works on this node")
    return Interfaces([_described(name, flags, found) for name, flags, found in group_by_interface(rows)], source)


def group_by_interface(rows: list[tuple[str, int, Address | None]]) -> list[tuple[str, int, list[Address]]]:
    """Return rows of `getifaddrs` (one per address) grouped by interface, in order of first occurrence."""
    order: list[str] = []
    flags: dict[str, int] = {}
    found: dict[str, list[Address]] = {}
    for name, bits, address in rows:
        if name not in flags:
            order.append(name)
            flags[name] = bits
            found[name] = []
        if address is not None and address not in found[name]:
            found[name].append(address)
    return [(name, flags[name], found[name]) for name in order]


def parse_ip_addr(text: str) -> list[tuple[str, int, Address | None]]:
    """Parse the output of `ip -j addr` into rows like those of `getifaddrs`. Raises ValueError for other output."""
    rows: list[tuple[str, int, Address | None]] = []
    listed = json.loads(text)
    if not isinstance(listed, list):
        raise ValueError("expected a list of interfaces")
    bits = {"UP": UP, "LOOPBACK": LOOPBACK, "LOWER_UP": RUNNING}
    for item in listed:
        if not isinstance(item, dict) or "ifname" not in item:
            continue
        flags = sum(bits.get(flag, 0) for flag in item.get("flags", []))
        rows.append((item["ifname"], flags, None))
        for address in item.get("addr_info", []):
            if address.get("family") in ("inet", "inet6") and "local" in address:
                rows.append((item["ifname"], flags, Address(address["local"], int(address.get("prefixlen", 0)))))
    return rows


def _rows() -> tuple[list[tuple[str, int, Address | None]] | None, str]:
    try:
        return _getifaddrs(), "getifaddrs"
    except (OSError, AttributeError):
        return _addresses_from_ip(), "ip -j addr"


def _addresses_from_ip() -> list[tuple[str, int, Address | None]] | None:
    try:
        return parse_ip_addr(run(["ip", "-j", "addr"], deadline_s=3.0).output)
    except (ProbeUnavailable, ValueError):
        return None


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def _getifaddrs() -> list[tuple[str, int, Address | None]]:
    library = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if library.getifaddrs(ctypes.byref(head)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    rows: list[tuple[str, int, Address | None]] = []
    try:
        entry = head
        while entry:
            item = entry.contents
            name = (item.name or b"").decode("utf-8", "replace")
            rows.append((name, int(item.flags), _address(item.address, item.netmask)))
            entry = item.next
    finally:
        library.freeifaddrs(head)
    return rows


def _address(pointer: int | None, netmask: int | None) -> Address | None:
    """Return the address in a `sockaddr`; None for other families (packet sockets)."""
    if not pointer:
        return None
    (family,) = struct.unpack("=H", ctypes.string_at(pointer, 2))
    if family == socket.AF_INET:
        text = socket.inet_ntop(socket.AF_INET, ctypes.string_at(pointer + 4, 4))
        mask = ctypes.string_at(netmask + 4, 4) if netmask else b"\xff" * 4
    elif family == socket.AF_INET6:
        text = socket.inet_ntop(socket.AF_INET6, ctypes.string_at(pointer + 8, 16))
        mask = ctypes.string_at(netmask + 8, 16) if netmask else b"\xff" * 16
    else:
        return None
    return Address(text, sum(bin(byte).count("1") for byte in mask))


def _described(name: str, flags: int, addresses: list[Address]) -> Interface:
    folder = "/sys/class/net/" + name
    ours = is_own_interface(name)
    kind = ""
    if flags & LOOPBACK:
        kind = "loopback"
    elif ours and os.path.isdir(folder + "/bridge"):
        kind = "virtual" if _has_physical_port(folder) else "bridge"
    elif ours:
        kind = "physical" if os.path.exists(folder + "/device") else "virtual"
    return Interface(
        name,
        bool(flags & UP),
        bool(flags & RUNNING),
        bool(flags & LOOPBACK),
        addresses,
        _mtu(name),
        _speed(folder) if ours else None,
        kind,
    )


def _has_physical_port(folder: str) -> bool:
    ports = list_folder(folder + "/brif")
    # The port may itself be a bond or a VLAN of a physical interface.
    return any(
        os.path.exists(f"/sys/class/net/{port}/device")
        or any(name.startswith("lower_") for name in list_folder(f"/sys/class/net/{port}"))
        for port in ports
    )


def _mtu(name: str) -> int | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            answer = fcntl.ioctl(plain.fileno(), _SIOCGIFMTU, struct.pack("16s16x", name.encode()[:15]))
        return int(struct.unpack("16si12x", answer)[1])
    except (OSError, struct.error):
        return None


@cheap("node", sends_requests=True)
def route(params: dict[str, Any]) -> Route:
    """Return the kernel's route to `params["destination"]`, found by connecting a datagram socket; nothing is sent."""
    destination = str(params["destination"])
    found = lookup(destination, float(params.get("limit_s", 3.0)))
    if not found.addresses:
        return Route(destination, problem=found.problem or "unresolved", detail=found.detail)
    address = found.addresses[0]
    try:
        source = _source(address)
    except OSError as error:
        return Route(destination, address, problem="no-route", detail=error.strerror or str(error))
    name = _route_by_netlink(address) or _holder_of(source)
    return Route(destination, address, name, source)


def _source(address: str) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as plain:
        plain.connect((address, 9))
        return str(plain.getsockname()[0])


def _holder_of(source: str) -> str:
    rows, _ = _rows()
    return next((name for name, _, address in rows or [] if address is not None and address.address == source), "")


def _route_by_netlink(address: str) -> str:
    """Return the name of the outgoing interface; empty if netlink does not report it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address.partition("%")[0])
    attribute = struct.pack("=HH", 4 + len(packed), 1) + packed
    body = struct.pack("=BBBBBBBBI", family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0) + attribute
    header = struct.pack("=IHHII", 16 + len(body), 26, 1, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
            netlink.settimeout(1.0)
            netlink.send(header + body)
            index = parse_route_answer(netlink.recv(65536))
        return socket.if_indextoname(index) if index else ""
    except (OSError, AttributeError, struct.error):
        return ""


def parse_route_answer(data: bytes) -> int | None:
    """Return the index of the outgoing interface in a netlink reply to a route request; None if it has none."""
    if len(data) < 28:
        return None
    length, kind = struct.unpack_from("=IH", data)
    if kind != 24:
        return None
    at = 16 + 12
    while at + 4 <= min(length, len(data)):
        size, name = struct.unpack_from("=HH", data, at)
        if size < 4:
            return None
        if name == 4 and size == 8:
            return int(struct.unpack_from("=I", data, at + 4)[0])
        at += (size + 3) & ~3
    return None


#: The number of addresses in one request; each takes two system calls.
MAX_ADDRESSES = 64


@dataclass(frozen=True)
class Routes:
    """One route for each requested address, in that order."""

    routes: list[Route]


def routes(params: dict[str, Any]) -> Routes:
    """Return the routes to `params["addresses"]`, which are literal addresses."""
    wanted = [str(text) for text in params["addresses"]][:MAX_ADDRESSES]
    for text in wanted:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ProbeUnavailable("missing", f"{text!r} is not an address") from None
    return Routes([route({"destination": text, "limit_s": 1.0}) for text in wanted])


# The state of each network interface: speed, bonding, error counters, driver, and its kernel settings. Everything
# is read from /sys and /proc, if they show this network namespace, and from the ethtool ioctl, which needs no
# privilege. A field is None, or empty, if the kernel does not report it.


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
    """All interfaces except loopback and veth pairs; `policy_rules` counts routing rules beyond the kernel's three.

    `left_out` counts interfaces beyond the first MAX_INTERFACES.
    """

    interfaces: list[NicState]
    policy_rules: int | None = None
    left_out: int = 0


@cheap("node")
def nic_states(params: dict[str, Any]) -> NicStates:
    """Return the state of every interface. Raises ProbeUnavailable if /sys does not show this network namespace."""
    try:
        names = sorted(os.listdir(NET))
    except OSError as error:
        kind = "denied" if isinstance(error, PermissionError) else "missing"
        raise ProbeUnavailable(kind, f"{NET} cannot be listed: {error.strerror}") from None
    ours = [name for name in names if name != "lo" and not name.startswith("veth") and is_own_interface(name)]
    if not ours and any(name != "lo" and _interface_exists(name) is False for name in names):
        raise ProbeUnavailable("missing", f"{NET} shows the interfaces of another network namespace")
    return NicStates(
        [_state(name) for name in ours[:MAX_INTERFACES]], _policy_rules(), max(0, len(ours) - MAX_INTERFACES)
    )


@dataclass(frozen=True)
class Carriers:
    """The number of times that each interface lost or regained its carrier since its creation; each loss counts
    twice.
    """

    changes: dict[str, int] = field(default_factory=dict)


@cheap("node")
def carriers(params: dict[str, Any]) -> Carriers:
    """Return the carrier changes so far. Raises ProbeUnavailable if /sys does not show this network namespace."""
    return Carriers(
        {
            state.name: state.carrier_changes
            for state in nic_states(params).interfaces
            if state.carrier_changes is not None
        }
    )


def is_own_interface(name: str) -> bool:
    """Return whether /sys shows our interface with this name, not one of another network namespace."""
    return _interface_exists(name) is True and read_number(os.path.join(NET, name, "ifindex")) == socket.if_nametoindex(
        name
    )


def _interface_exists(name: str) -> bool | None:
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
    mode, members = _bond(folder)
    return NicState(
        name,
        _speed(folder),
        read_text(os.path.join(folder, "duplex")),
        driver,
        firmware,
        read_number(os.path.join(folder, "carrier_changes")),
        read_numbers(os.path.join(folder, "statistics"), _COUNTERS),
        mode,
        members,
        _effective_setting(name, "rp_filter"),
        _effective_setting(name, "arp_ignore"),
        _effective_setting(name, "arp_announce"),
    )


def _bond(folder: str) -> tuple[str, list[Member]]:
    """Return the mode of a bond (`802.3ad`) and its members; both are empty for any other interface."""
    mode = read_text(os.path.join(folder, "bonding", "mode")).split(" ")[0]
    members: list[Member] = []
    for name in read_text(os.path.join(folder, "bonding", "slaves")).split():
        other = os.path.join(NET, name)
        status = read_text(os.path.join(other, "bonding_slave", "mii_status"))
        members.append(Member(name, None if not status else status == "up", _speed(other)))
    return mode, members


def driver_of(name: str) -> tuple[str, str]:
    """Return the driver and firmware version, as `ethtool -i` shows them; empty if the interface has none."""
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


def _effective_setting(name: str, setting: str) -> int | None:
    """Return the larger of the interface's own value and that of `all`, which the kernel applies."""
    found = [read_number(os.path.join(CONF, which, setting)) for which in ("all", name)]
    known = [value for value in found if value is not None]
    return max(known) if len(known) == 2 else None


def _speed(folder: str) -> int | None:
    speed = read_number(os.path.join(folder, "speed"))
    return speed if speed is not None and speed > 0 else None


def _policy_rules() -> int | None:
    """Return the IPv4 routing rules other than local, main and default; None if netlink does not report them."""
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
    """Return the number of rules in a netlink reply, and whether more replies follow. Raises OSError if refused."""
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


# Network settings of the kernel that all processes of a node share: ports, connections, neighbours.


SYSCTL = "/proc/sys/net"


@dataclass(frozen=True)
class KernelNetwork:
    """A field is None if the kernel has no such setting, or hides it.

    Args:
        first_port, last_port: of ip_local_port_range, used for outgoing connections and port 0.
        reserved_ports: ip_local_reserved_ports as written, excluded from that range.
        listen_backlog: somaxconn, the maximum number of connections that wait to be accepted.
        connections, most_connections: entries of connection tracking, and its limit.
        most_neighbours: gc_thresh3, the maximum number of neighbours (ARP entries) for IPv4.
    """

    first_port: int | None = None
    last_port: int | None = None
    reserved_ports: str = ""
    listen_backlog: int | None = None
    connections: int | None = None
    most_connections: int | None = None
    most_neighbours: int | None = None

    @property
    def ports(self) -> int | None:
        """The number of ports in the range, without the reserved ones."""
        if self.first_port is None or self.last_port is None:
            return None
        inside = sum(self.first_port <= port <= self.last_port for port in parse_port_list(self.reserved_ports))
        return max(0, self.last_port - self.first_port + 1 - inside)

    def may_assign(self, port: int) -> bool:
        """Return whether the kernel may assign this port to a connection that requests any port."""
        if self.first_port is None or self.last_port is None:
            return False
        return self.first_port <= port <= self.last_port and port not in parse_port_list(self.reserved_ports)


@cheap("node")
def kernel_network(params: dict[str, Any]) -> KernelNetwork:
    """Return the kernel's network settings. Raises ProbeUnavailable if /proc/sys/net cannot be read at all."""
    if not os.path.isdir(SYSCTL):
        raise ProbeUnavailable("missing", f"{SYSCTL} does not exist")
    ports = _text("ipv4/ip_local_port_range").split()
    return KernelNetwork(
        _whole_number(ports[0]) if len(ports) == 2 else None,
        _whole_number(ports[1]) if len(ports) == 2 else None,
        _text("ipv4/ip_local_reserved_ports"),
        read_number(os.path.join(SYSCTL, "core/somaxconn")),
        read_number(os.path.join(SYSCTL, "netfilter/nf_conntrack_count")),
        read_number(os.path.join(SYSCTL, "netfilter/nf_conntrack_max")),
        read_number(os.path.join(SYSCTL, "ipv4/neigh/default/gc_thresh3")),
    )


def visible_network() -> KernelNetwork:
    """Return the kernel's network settings. All of them are unknown if /proc/sys/net cannot be read."""
    try:
        return kernel_network({})
    except ProbeUnavailable:
        return KernelNetwork()


def parse_port_list(text: str) -> list[int]:
    """Parse the ports of `8080,9000-9002`; unreadable parts are skipped."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = _whole_number(first), _whole_number(last or first)
        if low is not None and high is not None and 0 < low <= high <= 65535:
            found.extend(range(low, high + 1))
    return found


def _whole_number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _text(name: str) -> str:
    return read_text(os.path.join(SYSCTL, name))
