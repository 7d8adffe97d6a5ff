"""Packets that a node's firewall drops or rejects. As in a real firewall, no rule affects the node's own loopback."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from ..node import Node
from .links import offloads_off

__all__ = [
    "drop_between",
    "drop_large",
    "drop_of_group",
    "drop_port",
    "drop_ports",
    "lose_everything",
    "only_ports",
    "packet_loss",
    "prohibit_port",
    "reject_port",
]

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
