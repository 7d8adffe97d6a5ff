"""The rank, server or worker that trains on a virtual node, found from outside so that looking costs it nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.cluster import Node

__all__ = ["Trains", "connected_at", "process_on", "with_sockets"]

#: How long it may take to import torch and meet the others on a busy machine.
STARTED_WITHIN_S = 80.0
_ESTABLISHED = 0x01
Trains = Callable[[Path], bool]


def process_on(node: Node, trains: Trains) -> int:
    """The process on `node` that has torch and `trains`, by its folder in /proc, as soon as there is one.

    The number is that of the machine, and not the node's own.
    """
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        for place in _of(node):
            with suppress(OSError):
                if trains(place) and "libtorch_cpu" in (place / "maps").read_text():
                    return int(place.name)
        time.sleep(0.1)
    raise AssertionError(f"nobody was training on {node.name} after {STARTED_WITHIN_S:g} s")


def _of(node: Node) -> Iterator[Path]:
    here = Path(f"/proc/{node.pid}/ns/net").readlink()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "ns/net").readlink() == here:
                yield place


def with_sockets(count: int) -> Trains:
    """It holds so many sockets."""

    def trains(place: Path) -> bool:
        links = (link.readlink().name for link in (place / "fd").iterdir())
        return sum(name.startswith("socket:") for name in links) >= count

    return trains


def connected_at(port: int, count: int) -> Trains:
    """On its node so many connections to or from this port are established."""

    def trains(place: Path) -> bool:
        found = 0
        for name in ("tcp", "tcp6"):
            for line in (place / "net" / name).read_text().splitlines()[1:]:
                local, remote, state = line.split()[1:4]
                ends = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
                found += int(state, 16) == _ESTABLISHED and port in ends
        return found >= count

    return trains
