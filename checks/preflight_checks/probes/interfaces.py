"""The network interfaces of this node, as communication libraries see them, and the route to a host.

`getifaddrs` is used first, because NCCL, Gloo and TensorPipe all use its list, in its order. Facts from /sys are used
only if /sys shows this network namespace, which in a container it may not.
"""

from __future__ import annotations

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
from preflight.agent.process import list_folder, read_number
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

    A bridge with a physical port is called `virtual`: it leads out of the machine, as on a host of virtual machines; a
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
    """All interfaces, in the order `getifaddrs` lists them."""

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
    """Every interface with its addresses. Raises ProbeUnavailable if no method of listing them works."""
    rows: list[tuple[str, int, Address | None]] | None = None
    source = "getifaddrs"
    try:
        rows = _getifaddrs()
    except (OSError, AttributeError):
        source = "ip -j addr"
        rows = _from_command()
    if rows is None:
        raise ProbeUnavailable("missing", "neither getifaddrs nor `ip -j addr` works on this node")
    return Interfaces([_described(name, flags, found) for name, flags, found in grouped(rows)], source)


def grouped(rows: list[tuple[str, int, Address | None]]) -> list[tuple[str, int, list[Address]]]:
    """Rows of `getifaddrs` (one per address) grouped by interface, in first-seen order."""
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


def _from_command() -> list[tuple[str, int, Address | None]] | None:
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
    """The address a `sockaddr` holds; None for other families (packet sockets)."""
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
    ours = _sys_is_ours(name, folder)
    kind = ""
    if flags & LOOPBACK:
        kind = "loopback"
    elif ours and os.path.isdir(folder + "/bridge"):
        kind = "virtual" if _has_physical_port(folder) else "bridge"
    elif ours:
        kind = "physical" if os.path.exists(folder + "/device") else "virtual"
    speed = read_number(folder + "/speed") if ours else None
    return Interface(
        name,
        bool(flags & UP),
        bool(flags & RUNNING),
        bool(flags & LOOPBACK),
        addresses,
        _mtu(name),
        speed if speed is not None and speed > 0 else None,
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


def _sys_is_ours(name: str, folder: str) -> bool:
    try:
        return read_number(folder + "/ifindex") == socket.if_nametoindex(name)
    except OSError:
        return False


def _mtu(name: str) -> int | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            answer = fcntl.ioctl(plain.fileno(), _SIOCGIFMTU, struct.pack("16s16x", name.encode()[:15]))
        return int(struct.unpack("16si12x", answer)[1])
    except (OSError, struct.error):
        return None


@cheap("node", sends_requests=True)
def route(params: dict[str, Any]) -> Route:
    """The kernel's route to `params["destination"]` (a name or an address). Sends nothing.

    Connecting a datagram socket makes the kernel choose route and source without a packet; the interface comes from
    netlink, or is the one with the source address if netlink is not available.
    """
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
    try:
        rows = _getifaddrs()
    except (OSError, AttributeError):
        rows = _from_command() or []
    for name, _flags, address in rows:
        if address is not None and address.address == source:
            return name
    return ""


def _route_by_netlink(address: str) -> str:
    """Name of the outgoing interface; empty if netlink does not report it."""
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
    """Index of the outgoing interface in one netlink answer to a route request; None if it has none."""
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
    """The routes to `params["addresses"]`, which are literal addresses."""
    wanted = [str(text) for text in params["addresses"]][:MAX_ADDRESSES]
    for text in wanted:
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise ProbeUnavailable("missing", f"{text!r} is not an address") from None
    return Routes([route({"destination": text, "limit_s": 1.0}) for text in wanted])
