"""Which interfaces a filter variable leaves, exactly as the libraries read it.

NCCL (src/misc/socket.cc, ncclFindInterfaces): a comma list of prefixes; `=` in front makes them exact names, `^`
excludes, `^=` excludes exact names; a value of one character is ignored; interfaces without an IP address are
skipped; the order is that of the system, not of the list; the first one left carries the bootstrap.
torch splits GLOO_SOCKET_IFNAME at commas and Gloo compares whole names; each listed one must exist.
Paddle does not split it. TensorPipe takes TP_SOCKET_IFNAME as one whole name.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from preflight.job import Job
from preflight_checks.demands import Filter, backends, filter_of, filters
from preflight_checks.probes.interfaces import Address, Interface

#: Interfaces that carry containers' traffic inside one machine, by the prefixes their makers give them.
INNER_PREFIXES = (
    "docker",
    "br-",
    "veth",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "lxc",
    "tunl",
    "kube-",
    "podman",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The interfaces left by a filter, in the order the library tries them, and the names it asked for in vain."""

    interfaces: tuple[Interface, ...]
    missing: tuple[str, ...] = ()
    unaddressed: tuple[str, ...] = ()


def select(variable: str, value: str, interfaces: Sequence[Interface]) -> Choice:
    """What `variable=value` leaves of a node's interfaces."""
    if variable == "NCCL_SOCKET_IFNAME":
        return _nccl(value, interfaces)
    names = [value] if variable == "TP_SOCKET_IFNAME" else value.split(",")
    return _exact(names, interfaces)


def _nccl(value: str, interfaces: Sequence[Interface]) -> Choice:
    if len(value) < 2:
        return nccl_default(interfaces)
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    wanted = [part.split(":")[0] for part in rest.split(",") if part.split(":")[0]]

    def matches(name: str) -> bool:
        if not wanted:
            return True
        return any(name == part if exact else name.startswith(part) for part in wanted)

    matched = [item for item in interfaces if matches(item.name) != exclude]
    left = tuple(item for item in matched if item.addresses and not _only_v6_loopback(item))
    missing: tuple[str, ...] = ()
    if not exclude:
        names = [item.name for item in interfaces]
        missing = tuple(part for part in wanted if not any(n == part if exact else n.startswith(part) for n in names))
    return Choice(left, missing, tuple(item.name for item in matched if not item.addresses))


def nccl_default(interfaces: Sequence[Interface]) -> Choice:
    """What NCCL takes without a filter: `ib*`, else anything but docker, lo and virbr, else these in that order."""
    for value in ("ib", "^docker,lo,virbr", "docker", "lo", "virbr"):
        choice = _nccl(value, interfaces)
        if choice.interfaces:
            return Choice(choice.interfaces)
    return Choice(())


def _exact(names: Sequence[str], interfaces: Sequence[Interface]) -> Choice:
    by_name = {item.name: item for item in interfaces}
    found = [by_name[name] for name in names if name in by_name]
    left = tuple(item for item in found if item.addresses)
    missing = tuple(name for name in names if name not in by_name)
    return Choice(left, missing, tuple(item.name for item in found if not item.addresses))


def _only_v6_loopback(item: Interface) -> bool:
    return all(address.address == "::1" for address in item.addresses)


def dialled(item: Interface) -> Address | None:
    """The address of `item` that peers are told: its first, IPv4 before global IPv6 as the system lists them."""
    usable = [address for address in item.addresses if not ipaddress.ip_address(address.address).is_link_local]
    return usable[0] if usable else None


def subnet(address: Address) -> str:
    """The network `address` lies in."""
    return str(ipaddress.ip_interface(f"{address.address}/{address.prefix}").network)


def is_inner(item: Interface) -> bool:
    """Whether `item` only connects containers of one machine."""
    return item.kind == "bridge" or item.name.startswith(INNER_PREFIXES)


def nearest(name: str, interfaces: Sequence[Interface]) -> str:
    """The interface whose name looks most like `name`, among those with an address; empty when none does."""
    names = [item.name for item in interfaces if item.addresses and not item.loopback]
    close = difflib.get_close_matches(name.lstrip("^="), names, 1, 0.5)
    return close[0] if close else ""


def relevant(job: Job, variable: str) -> bool:
    """Whether the job surely, or for all that is known, reads `variable`."""
    names, _claims = backends(job)
    if not names:
        return True
    if variable == "NCCL_SOCKET_IFNAME":
        return "nccl" in names
    return bool(names & {"gloo", "ps"}) if variable == "GLOO_SOCKET_IFNAME" else False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The interface and address of a node that the job's communication library will use first."""

    interface: Interface
    address: Address
    among: tuple[Interface, ...]
    filter: Filter


def chosen(job: Job, node: str, interfaces: Sequence[Interface]) -> Chosen | None:
    """What a filter of the job chooses on `node`; None without a filter or when it leaves nothing."""
    found = [f for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if (f := filter_of(job, name, node))]
    found.sort(key=lambda item: not relevant(job, item.variable))
    for item in found:
        left = select(item.variable, item.value, interfaces).interfaces
        for interface in left:
            address = dialled(interface)
            if address is not None:
                return Chosen(interface, address, left, item)
    return None


def has_filter(job: Job) -> bool:
    """Whether any interface filter stands in the job's files."""
    return bool(filters(job))
