"""Extra, missing and moved interfaces and addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..node import Node

__all__ = ["extra_address", "extra_interface", "moved_address", "no_address"]


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
