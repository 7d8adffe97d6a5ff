"""Finds the rank, server or worker that trains on a virtual node, from outside and at no cost to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.cluster import Node
from tests.waiting import until
from tests.warm_python.server import SERVER_NAME

__all__ = ["Trains", "connected_at", "process_on", "with_sockets"]

#: How long importing torch and the rendezvous may take on a busy machine.
STARTED_WITHIN_S = 80.0
_ESTABLISHED = 0x01
Trains = Callable[[Path], bool]


def process_on(node: Node, trains: Trains) -> int:
    """Wait for the process on `node` that has torch and satisfies `trains`, given its folder in /proc; return its pid.

    The pid is that of the machine, not of the node.
    """

    def training() -> int:
        for place in _of(node):
            with suppress(OSError):
                # An agent that was forked from a process with torch does not train.
                if (place / "comm").read_text().strip() == SERVER_NAME:
                    continue
                if trains(place) and "libtorch_cpu" in (place / "maps").read_text():
                    return int(place.name)
        return 0

    return until(training, within_s=STARTED_WITHIN_S)


def _of(node: Node) -> Iterator[Path]:
    here = Path(f"/proc/{node.pid}/ns/net").readlink()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "ns/net").readlink() == here:
                yield place


def with_sockets(count: int) -> Trains:
    """Whether a process has this many sockets."""

    def trains(place: Path) -> bool:
        links = (link.readlink().name for link in (place / "fd").iterdir())
        return sum(name.startswith("socket:") for name in links) >= count

    return trains


def connected_at(port: int, count: int) -> Trains:
    """Whether a process has this many established connections to or from this port."""

    def trains(place: Path) -> bool:
        held = {link.readlink().name for link in (place / "fd").iterdir()}
        found = 0
        for name in ("tcp", "tcp6"):
            for line in (place / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                ends = {int(end.rpartition(":")[2], 16) for end in fields[1:3]}
                established = int(fields[3], 16) == _ESTABLISHED
                found += established and port in ends and f"socket:[{fields[9]}]" in held
        return found >= count

    return trains
