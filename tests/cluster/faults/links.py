"""Links, addresses and packets: links that are down, slow or too narrow, and packets that are dropped."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from tests.cluster.faults.base import FaultUnavailable
from tests.cluster.faults.services import sshd_stopped
from tests.cluster.node import Node, wait_until

# Extra, missing and moved interfaces and addresses.


@contextmanager
def extra_interface(nodes: Sequence[Node], name: str, address: str = "") -> Iterator[None]:
    """Each of the nodes has an extra interface without peers, up and with a carrier; `address` has a prefix."""
    with ExitStack() as undo:
        for node in nodes:
            node.must(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-x"])
            undo.callback(node.must, ["ip", "link", "del", name])
            lines = [f"link set {name} up", f"link set {name}-x up"]
            node.must(
                ["ip", "-batch", "-"],
                input="\n".join([*lines, f"addr add {address} dev {name}"] if address else lines) + "\n",
            )
        yield


@contextmanager
def extra_address(node: Node, interface: str, address: str) -> Iterator[None]:
    """The interface has a second address, given with its prefix."""
    node.must(["ip", "addr", "add", address, "dev", interface])
    try:
        yield
    finally:
        node.must(["ip", "addr", "del", address, "dev", interface])


@contextmanager
def no_address(node: Node, interface: str) -> Iterator[None]:
    """The interface is up and has no address."""
    with _without_address(node, interface):
        yield


@contextmanager
def moved_address(node: Node, interface: str, address: str) -> Iterator[None]:
    """The interface has another address, in another network, than the cluster uses for the node."""
    with _without_address(node, interface):
        node.must(["ip", "addr", "add", address, "dev", interface])
        yield


@contextmanager
def _without_address(node: Node, interface: str) -> Iterator[None]:
    before = node.must(["ip", "-o", "-4", "addr", "show", "dev", interface]).split()[3]
    route = node.must(["ip", "-4", "route", "show", "dev", interface, "proto", "kernel"]).split()
    node.must(["ip", "-4", "addr", "flush", "dev", interface])
    try:
        yield
    finally:
        node.must(["ip", "-4", "addr", "flush", "dev", interface])
        node.must(["ip", "addr", "add", before, "dev", interface])
        # Restore the route as in node.sh, with quick acknowledgements.
        node.must(["ip", "route", "change", *route, "dev", interface, "proto", "kernel"])


_RELAY = Path(__file__).with_name("relay.py")
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
    """The cable is unplugged: the interface is up but has no carrier, and peers wait for an answer."""
    port = node.place.fabric_ports[interface]
    node.fabric.must(["ip", "link", "set", port, "down"])
    try:
        yield
    finally:
        node.fabric.must(["ip", "link", "set", port, "up"])
        _wait_for_carrier(node, interface)


@contextmanager
def flapping(node: Node, *, every_s: float = 1.8, down_s: float = 0.2) -> Iterator[None]:
    """The cable of the data network makes contact again and again: no carrier for `down_s`, `every_s` apart."""
    port, stop = node.place.fabric_ports["eth0"], threading.Event()

    def flap() -> None:
        while not stop.wait(every_s - down_s):
            node.fabric.run(["ip", "link", "set", port, "down"])
            stop.wait(down_s)
            node.fabric.run(["ip", "link", "set", port, "up"])

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _wait_for_carrier(node, "eth0")


@contextmanager
def same_hardware_address(node: Node, other: Node) -> Iterator[None]:
    """The card of `node` on the data network has the hardware address of that of `other`, as in a copied machine."""
    own, copied = (place.read_text("/sys/class/net/eth0/address").strip() for place in (node, other))
    node.must(["ip", "link", "set", "eth0", "address", copied])
    try:
        yield
    finally:
        node.must(["ip", "link", "set", "eth0", "address", own])


@contextmanager
def off_the_switch(node: Node) -> Iterator[None]:
    """The switch drops the node's packets, although the port has a carrier, as with a wrong VLAN."""
    port = node.place.fabric_ports["eth0"]
    node.fabric.must(["ip", "link", "set", port, "nomaster"])
    try:
        yield
    finally:
        node.fabric.must(["ip", "link", "set", port, "master", "data"])


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
def delayed(node: Node, milliseconds: float, *, jitter: float = 0.0) -> Iterator[None]:
    """Every frame from and to the node's data interface is delayed, plus or minus up to `jitter`.

    A program between the switch and the node's cable does this, since many kernels lack netem; it carries about
    100 Mbit/s.
    """
    port = node.place.fabric_ports["eth0"]
    ends = (f"{port}-in", f"{port}-out")
    everybody = [node, *node.peers]
    with ExitStack() as undo:
        undo.enter_context(offloads_off(everybody))
        for host in everybody:
            # Frames that a program forwards need their checksums.
            undo.callback(host.must, ["ethtool", "-K", "eth0", "tx", "on"])
            host.must(["ethtool", "-K", "eth0", "tx", "off"])
        node.fabric.must(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]])
        undo.callback(node.fabric.must, ["ip", "link", "del", ends[0]])
        node.fabric.must(["ip", "link", "set", port, "nomaster"])
        undo.callback(node.fabric.must, ["ip", "link", "set", port, "master", "data"])
        node.fabric.must(["ip", "link", "set", ends[1], "master", "data", "up"])
        node.fabric.must(["ip", "link", "set", ends[0], "up"])
        command = [sys.executable, "-I", "-S", str(_RELAY), port, ends[0], str(milliseconds), str(jitter)]
        relay = undo.enter_context(node.fabric.popen(command, stdin=subprocess.PIPE))
        undo.callback(relay.kill_session)
        assert relay.stdout is not None and relay.stderr is not None
        if relay.stdout.readline() != "relaying\n":
            raise FaultUnavailable(f"no program may stand in the cable here: {relay.stderr.read().strip()}")
        yield


@contextmanager
def duplicate_address(node: Node) -> Iterator[None]:
    """A machine outside the cluster has the same address as the node's data interface, and also answers for it."""
    port = f"dup-{node.place.index}"
    with ExitStack() as undo:
        node.fabric.must(["ip", "link", "add", port, "type", "veth", "peer", "name", f"{port}-sw"])
        undo.callback(node.fabric.must, ["ip", "link", "del", port])
        node.fabric.must(["ip", "link", "set", f"{port}-sw", "master", "data", "up"])
        # The namespace of the switches has no address of its own on this network.
        node.fabric.must(["ip", "address", "add", f"{node.data_address}/16", "dev", port])
        node.fabric.must(["ip", "link", "set", port, "up"])
        for host in node.peers:
            # Clear the neighbour tables, as after minutes without traffic.
            host.run(["ip", "neigh", "flush", "to", node.data_address])
        yield
        for host in node.peers:
            undo.callback(host.run, ["ip", "neigh", "flush", "to", node.data_address])


@contextmanager
def routed_over_management(node: Node) -> Iterator[None]:
    """The node sends to its peers' data addresses over the management network, as after a wrong static route."""
    nodes = [peer for peer in node.peers if peer.place.kind == "node"]
    with ExitStack() as undo:
        for peer in nodes:
            route = [peer.data_address, "via", peer.management_address, "dev", "eth1"]
            node.must(["ip", "route", "add", *route])
            undo.callback(node.must, ["ip", "route", "del", *route])
        yield


@contextmanager
def offloads_off(nodes: Sequence[Node]) -> Iterator[None]:
    """The hosts' data is sent in packets of the MTU, as on a wire."""

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


# Packets that a node's firewall drops or rejects. As in a real firewall, no rule affects the node's own loopback.


_numbers = itertools.count(1)
_SYN = "tcp flags & (syn | ack) == syn"
Direction = Literal["in", "out"]


@contextmanager
def drop_port(node: Node, port: int, *, direction: Direction = "in", source: Node | None = None) -> Iterator[None]:
    """TCP to `port` is dropped silently: connects run into the caller's own timeout.

    "in": connections to this node, from `source` alone where given. "out": connections that this
    node makes to that port elsewhere.
    """
    with _rules(node, direction, [f"{_from(source, direction)}tcp dport {port} drop"]):
        yield


@contextmanager
def reject_port(node: Node, port: int, *, direction: Direction = "in", source: Node | None = None) -> Iterator[None]:
    """TCP to `port` is answered with a reset: connects are refused at once. Otherwise as `drop_port`."""
    rule = f"{_from(source, direction)}tcp dport {port} reject with tcp reset"
    with _rules(node, direction, [rule]):
        yield


@contextmanager
def drop_ports(node: Node, first: int, last: int) -> Iterator[None]:
    """Connections to these TCP ports of the node are dropped; its own connections still work."""
    with _rules(node, "in", [f"{_SYN} tcp dport {first}-{last} drop"]):
        yield


@contextmanager
def prohibit_port(node: Node, port: int) -> Iterator[None]:
    """TCP to `port` is answered with the ICMP message "administratively prohibited", as by firewalld."""
    with _rules(node, "in", [f"tcp dport {port} reject with icmpx type admin-prohibited"]):
        yield


@contextmanager
def drop_large(node: Node, port: int) -> Iterator[None]:
    """TCP packets of more than 600 bytes to `port` are dropped silently."""
    # A packet, not one that the offloads of virtual cables joined.
    with offloads_off([node, *node.peers]), _rules(node, "in", [f"tcp dport {port} meta length > 600 drop"]):
        yield


@contextmanager
def only_ports(node: Node, ports: Sequence[int]) -> Iterator[None]:
    """Connections to any other TCP port of the node are dropped; its own connections still work."""
    allowed = ", ".join(str(port) for port in ports)
    with _rules(node, "in", [f"{_SYN} tcp dport != {{ {allowed} }} drop"]):
        yield


@contextmanager
def drop_between(a: Node, b: Node) -> Iterator[None]:
    """New traffic from `a` to `b` is dropped (TCP connects, UDP, echo requests); `b` reaches `a`."""
    source = _from(a, "in")
    rules = [f"{source}{_SYN} drop", f"{source}meta l4proto udp drop", f"{source}icmp type echo-request drop"]
    with _rules(b, "in", rules):
        yield


@contextmanager
def lose_everything(a: Node, b: Node) -> Iterator[None]:
    """All packets from `a` to `b` are dropped, including answers: neither can connect to the other."""
    with _rules(b, "in", [f"{_from(a, 'in')}drop"]):
        yield


@contextmanager
def drop_of_group(node: Node, group: int, peer: Node) -> Iterator[None]:
    """TCP packets from `node` to `peer` are dropped if the program has this Unix group."""
    rule = f"meta skgid {group} ip daddr {{ {peer.data_address}, {peer.management_address} }} meta l4proto tcp drop"
    with _rules(node, "out", [rule]):
        yield


@contextmanager
def packet_loss(node: Node, percent: int) -> Iterator[None]:
    """This share of the packets to the node is lost at random; `percent` is 1 to 99."""
    # With offloads a "packet" would be up to 64 KB.
    everybody = [node, *node.peers]
    with offloads_off(everybody), _rules(node, "in", [f"numgen random mod 100 < {percent} drop"]):
        yield


def _from(source: Node | None, direction: Direction) -> str:
    if source is None:
        return ""
    if direction == "out":
        raise ValueError("source says where incoming packets come from; it has no meaning with 'out'")
    return f"ip saddr {{ {source.data_address}, {source.management_address} }} "


@contextmanager
def _rules(node: Node, direction: Direction, rules: Sequence[str]) -> Iterator[None]:
    """Each fault has its own table, so that faults can overlap and end in any order."""
    table = f"fault_{next(_numbers)}"
    hook, loopback = ("input", "iifname lo accept") if direction == "in" else ("output", "oifname lo accept")
    body = "\n".join([f"type filter hook {hook} priority 0; policy accept;", loopback, *rules])
    node.must(["nft", "-f", "-"], input=f"table inet {table} {{\nchain {hook} {{\n{body}\n}}\n}}\n")
    try:
        yield
    finally:
        node.must(["nft", "delete", "table", "inet", table])
