"""The hardware addresses that this node knows for others, and the machines that respond to its ARP requests.

The neighbour table is readable by all users and shows one response per address. New requests, which reveal two machines
that respond for one address, need a packet socket (CAP_NET_RAW).
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.interfaces import interfaces

_SIOCGIFHWADDR = 0x8927
_ETH_P_ARP, _ETH_P_IP, _REQUEST, _REPLY = 0x0806, 0x0800, 1, 2
_ARP = struct.Struct("!HHBBH6s4s6s4s")
#: struct ndmsg of linux/neighbour.h, and the two attributes that matter here.
_NDMSG, _NDA_DST, _NDA_LLADDR = struct.Struct("=BxxxiHBB"), 1, 2
#: Incomplete and failed entries hold no answer; local ones (no ARP) are not machines.
_NO_ANSWER = 0x01 | 0x20 | 0x40
_REQUEST_S = 0.3


@dataclass(frozen=True)
class Neighbour:
    """The kernel's entry for an address on one of its own networks."""

    address: str
    hardware: str
    interface: str


@dataclass(frozen=True)
class Card:
    """An interface of this node with its hardware address and its addresses."""

    name: str
    hardware: str
    addresses: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Neighbours:
    """The neighbours and network cards of a node. `answers` maps addresses to responders; `not_asked` is the
    problem.
    """

    table: list[Neighbour] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    answers: dict[str, list[str]] = field(default_factory=dict)
    not_asked: str = ""


def neighbours(params: dict[str, Any]) -> Neighbours:
    """Return the neighbours, and the machines that respond for `params["ask"]`. Raises ProbeUnavailable without a
    table.
    """
    cards = [
        Card(item.name, hardware, [address.address for address in item.addresses])
        for item in interfaces({}).interfaces
        for hardware in [_hardware_of(item.name)]
        if hardware and not item.loopback
    ]
    try:
        table = _table()
    except OSError as error:
        raise ProbeUnavailable("denied", f"the neighbour table cannot be read: {error}") from None
    wanted = [str(address) for address in params.get("ask") or [] if ":" not in str(address)]
    try:
        answers, why_not = _request_all(wanted, table, cards), ""
    except OSError as error:
        answers, why_not = {}, f"requesting hardware addresses needs CAP_NET_RAW ({error.strerror or error})"
    return Neighbours(table, cards, answers, why_not)


def _hardware_of(name: str) -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            answer = fcntl.ioctl(plain.fileno(), _SIOCGIFHWADDR, struct.pack("16s24x", name.encode()[:15]))
    except OSError:
        return ""
    kind, hardware = struct.unpack_from("=H6s", answer, 16)
    return format_hardware(hardware) if kind == 1 and any(hardware) else ""


def format_hardware(hardware: bytes) -> str:
    """Format as `02:42:ac:11:00:02`."""
    return ":".join(f"{byte:02x}" for byte in hardware)


def _table() -> list[Neighbour]:
    """Return all entries of both families, from netlink."""
    neighbours: list[Neighbour] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(1.0)
        # RTM_GETNEIGH with NLM_F_REQUEST and NLM_F_DUMP.
        netlink.send(struct.pack("=IHHII", 16 + _NDMSG.size, 30, 0x301, 1, 0) + _NDMSG.pack(0, 0, 0, 0, 0))
        while True:
            rows, over = parse_neighbours(netlink.recv(1 << 17))
            for index, address, hardware in rows:
                try:
                    neighbours.append(Neighbour(address, hardware, socket.if_indextoname(index)))
                except OSError:
                    continue
            if over:
                return neighbours


def parse_neighbours(data: bytes) -> tuple[list[tuple[int, str, str]], bool]:
    """Parse a netlink reply: interface index and both addresses of each entry, and whether it is the last reply."""
    entries: list[tuple[int, str, str]] = []
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if length < 16 or kind in (2, 3):  # NLMSG_ERROR, NLMSG_DONE
            return entries, True
        if kind == 28 and length >= 16 + _NDMSG.size:  # RTM_NEWNEIGH
            family, index, state, _, _ = _NDMSG.unpack_from(data, at + 16)
            row = _entry(family, data[at + 16 + _NDMSG.size : at + length])
            if row is not None and not state & _NO_ANSWER:
                entries.append((index, row[0], row[1]))
        at += (length + 3) & ~3
    return entries, False


def _entry(family: int, attributes: bytes) -> tuple[str, str] | None:
    address = hardware = ""
    at = 0
    while at + 4 <= len(attributes):
        size, name = struct.unpack_from("=HH", attributes, at)
        if size < 4:
            break
        value = attributes[at + 4 : at + size]
        if name == _NDA_DST and family in (socket.AF_INET, socket.AF_INET6) and len(value) in (4, 16):
            address = socket.inet_ntop(family, value)
        elif name == _NDA_LLADDR and len(value) == 6:
            hardware = format_hardware(value)
        at += (size + 3) & ~3
    return (address, hardware) if address and hardware else None


def _request_all(wanted: list[str], table: list[Neighbour], cards: list[Card]) -> dict[str, list[str]]:
    """Send a request for each address over its interface in the table. Raises OSError if that is not permitted."""
    over = {entry.address: entry.interface for entry in table}
    own = {card.name: card for card in cards}
    found: dict[str, list[str]] = {}
    for name in sorted({over[address] for address in wanted if over.get(address) in own}):
        card = own[name]
        mine = [address for address in card.addresses if ":" not in address]
        here = [address for address in wanted if over.get(address) == name]
        if mine:
            found.update(_request(name, card.hardware, mine[0], here))
    return found


def _request(name: str, mac_address: str, own_address: str, wanted: list[str]) -> dict[str, list[str]]:
    """Send an ARP request for each of these addresses on one interface; return all machines that respond to each."""
    replies: dict[str, list[str]] = {address: [] for address in wanted}
    me, sender = bytes(int(part, 16) for part in mac_address.split(":")), socket.inet_aton(own_address)
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ARP)) as raw:
        raw.bind((name, _ETH_P_ARP))
        broadcast = (name, _ETH_P_ARP, 0, 1, b"\xff" * 6)
        for address in wanted:
            target = socket.inet_aton(address)
            raw.sendto(_ARP.pack(1, _ETH_P_IP, 6, 4, _REQUEST, me, sender, b"\0" * 6, target), broadcast)
        until = time.monotonic() + _REQUEST_S
        while time.monotonic() < until:
            readable, _, _ = select.select([raw], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                break
            data = raw.recv(2048)
            if len(data) < _ARP.size:
                continue
            _, _, _, _, kind, who, whose, _, _ = _ARP.unpack_from(data)
            answers = replies.get(socket.inet_ntoa(whose))
            if kind == _REPLY and answers is not None and format_hardware(who) not in answers:
                answers.append(format_hardware(who))
    return replies
