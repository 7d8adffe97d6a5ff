"""Links that are down, unplugged, renamed, slow, or too narrow for their packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..node import Node, wait_until
from .base import FaultUnavailable
from .services import sshd_stopped

__all__ = [
    "interface_mtu",
    "link_down",
    "mtu_black_hole",
    "node_down",
    "offloads_off",
    "rename_interface",
    "slow_link",
    "unplugged",
]

_JUMBO = 9000
_ORDINARY = 1500


@contextmanager
def link_down(node: Node, interface: str) -> Iterator[None]:
    """The interface is switched off on the node itself; its route goes with it."""
    node.must(["ip", "link", "set", interface, "down"])
    try:
        yield
    finally:
        node.must(["ip", "link", "set", interface, "up"])
        _wait_for_carrier(node, interface)


@contextmanager
def unplugged(node: Node, interface: str) -> Iterator[None]:
    """The cable is out: the interface is up but has no carrier, and peers wait for an answer."""
    port = node.place.fabric_ports[interface]
    node.fabric.must(["ip", "link", "set", port, "down"])
    try:
        yield
    finally:
        node.fabric.must(["ip", "link", "set", port, "up"])
        _wait_for_carrier(node, interface)


@contextmanager
def node_down(node: Node) -> Iterator[None]:
    """The node is as good as off: no sshd, no network."""
    with sshd_stopped(node), unplugged(node, "eth0"), unplugged(node, "eth1"):
        yield


@contextmanager
def rename_interface(node: Node, old: str, new: str) -> Iterator[None]:
    """The interface has another name here than on the other nodes; addresses stay."""
    _rename(node, old, new)
    try:
        yield
    finally:
        _rename(node, new, old)


@contextmanager
def interface_mtu(node: Node, interface: str, mtu: int) -> Iterator[None]:
    """The interface is set to another MTU than the network's."""
    node.must(["ip", "link", "set", interface, "mtu", str(mtu)])
    try:
        yield
    finally:
        node.must(["ip", "link", "set", interface, "mtu", str(node.mtu)])


@contextmanager
def mtu_black_hole(node: Node) -> Iterator[None]:
    """Every host's data network is set to 9000, but the switch port of this node passes 1500 only.

    Connections and small messages pass, bulk data stalls, and no ICMP message says why. Between
    the other nodes everything works.
    """
    everybody = [node, *node.peers]
    with offloads_off(everybody), ExitStack() as undo:
        for host in everybody:
            undo.callback(host.must, ["ip", "link", "set", "eth0", "mtu", str(host.mtu)])
            host.must(["ip", "link", "set", "eth0", "mtu", str(_JUMBO)])
        widths = {"data": _JUMBO} | {host.place.fabric_ports["eth0"]: _JUMBO for host in everybody}
        widths[node.place.fabric_ports["eth0"]] = _ORDINARY
        for port, width in widths.items():
            undo.callback(node.fabric.must, ["ip", "link", "set", port, "mtu", str(node.mtu)])
            node.fabric.must(["ip", "link", "set", port, "mtu", str(width)])
        yield


@contextmanager
def slow_link(node: Node, megabits_per_s: int) -> Iterator[None]:
    """The node sends on the data network at this rate at most."""
    shape = ["rate", f"{megabits_per_s}mbit", "burst", "64kb", "latency", "200ms"]
    done = node.run(["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *shape])
    if done.returncode != 0:
        raise FaultUnavailable(f"this kernel does not shape traffic: {done.stderr.strip()}")
    try:
        yield
    finally:
        node.must(["tc", "qdisc", "del", "dev", "eth0", "root"])


@contextmanager
def offloads_off(nodes: Sequence[Node]) -> Iterator[None]:
    """What the hosts send on the data network is cut into packets of the MTU, as on a wire."""

    def switch(node: Node, state: str) -> None:
        node.must(["ethtool", "-K", "eth0", "tso", state, "gso", state, "gro", state])

    with ExitStack() as undo:
        for node in nodes:
            undo.callback(switch, node, "on")
            switch(node, "off")
        yield


def _rename(node: Node, old: str, new: str) -> None:
    steps = [f"link set {old} down", f"link set {old} name {new}", f"link set {new} up"]
    node.must(["ip", "-batch", "-"], input="\n".join(steps) + "\n")
    _wait_for_carrier(node, new)


def _wait_for_carrier(node: Node, interface: str) -> None:
    state = f"/sys/class/net/{interface}/operstate"
    wait_until(lambda: node.read_text(state) == "up\n", 5, f"{interface} of {node.name} to be up")
