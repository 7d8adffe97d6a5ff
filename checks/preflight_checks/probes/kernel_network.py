"""Network settings of the kernel that all processes of a node share: ports, connections, neighbours."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from preflight.agent.cheap import cheap
from preflight.agent.process import read_number, read_text
from preflight.agent.wire import ProbeUnavailable

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
        inside = sum(self.first_port <= port <= self.last_port for port in reserved(self.reserved_ports))
        return max(0, self.last_port - self.first_port + 1 - inside)

    def may_assign(self, port: int) -> bool:
        """Whether the kernel may assign this port to a connection that requests any."""
        if self.first_port is None or self.last_port is None:
            return False
        return self.first_port <= port <= self.last_port and port not in reserved(self.reserved_ports)


@cheap("node")
def kernel_network(params: dict[str, Any]) -> KernelNetwork:
    """These settings of this node. Raises ProbeUnavailable if /proc/sys/net cannot be read at all."""
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
    """The same settings; all of them unknown if /proc/sys/net cannot be read."""
    try:
        return kernel_network({})
    except ProbeUnavailable:
        return KernelNetwork()


def reserved(text: str) -> list[int]:
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
