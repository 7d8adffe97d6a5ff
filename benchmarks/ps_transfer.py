"""Push and pull of one worker against plain Python sockets that move the same bytes, in turns over loopback."""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KIB = 1024
#: Payload of one direction, and how many exchanges one round makes.
SIZES = ((KIB, 300), (64 * KIB, 100), (1024 * KIB, 30), (4096 * KIB, 12), (16384 * KIB, 5), (65536 * KIB, 3))
ROUNDS = 9
CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Round:
    """Seconds of one exchange: wall time, and CPU time of both ends."""

    wall_s: float
    cpu_s: float


def main() -> int:
    """Print one line for each size."""
    import torch

    torch.set_num_threads(1)
    # Each end has its own processor, as on two nodes. On one processor both take turns, which is faster for small
    # messages.
    os.sched_setaffinity(0, CORES[:1])
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print("\npush+pull of one worker and one server against raw sockets (medians of the rounds' ratios)")
    print(f"  {'bytes each way':>15}{'raw GB/s':>10}{'ours GB/s':>11}{'raw us':>10}{'ours us':>10}", end="")
    print(f"{'speed':>8}{'(range)':>14}{'by cpu':>8}")
    for size, times in SIZES:
        raw_rounds, our_rounds = [], []
        with raw_peer(size) as raw, our_server(size) as ours:
            for number in range(rounds + 1):
                for exchange, found in ((raw, raw_rounds), (ours, our_rounds)):
                    took = measured(exchange, times)
                    if number:
                        found.append(took)
        show(size, raw_rounds, our_rounds)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"  load average {load}; {os.cpu_count()} processors; congestion control {congestion()}")
    print("  speed: raw time / our time, aim >= 0.80 from 1 to 64 MiB; 1 KiB: ours <= 2 x raw, so >= 0.50")
    return 0


@dataclass(frozen=True)
class Peer:
    """One contestant: its exchange, and the process at the other end."""

    exchange: Callable[[], None]
    pid: int


def measured(peer: Peer, times: int) -> Round:
    """Measure one round."""
    spent, began = processor_s(peer.pid), time.perf_counter()
    for _ in range(times):
        peer.exchange()
    wall_s = time.perf_counter() - began
    return Round(wall_s / times, (processor_s(peer.pid) - spent) / times)


def processor_s(pid: int) -> float:
    """Processor time of this process and of `pid`, from the scheduler's counters in nanoseconds."""
    total = 0
    for process in (os.getpid(), pid):
        for account in Path(f"/proc/{process}/task").glob("*/schedstat"):
            total += int(account.read_text().split()[0])
    return total / 1e9


def show(size: int, raw: list[Round], ours: list[Round]) -> None:
    """Print one line of the table."""
    ratios = [a.wall_s / b.wall_s for a, b in zip(raw, ours, strict=True)]
    by_cpu = statistics.median(a.cpu_s / b.cpu_s for a, b in zip(raw, ours, strict=True) if b.cpu_s)
    raw_s, our_s = (statistics.median(found.wall_s for found in rounds) for rounds in (raw, ours))
    print(f"  {size:>15}{2 * size / raw_s / 1e9:>10.2f}{2 * size / our_s / 1e9:>11.2f}", end="")
    print(f"{raw_s * 1e6:>10.0f}{our_s * 1e6:>10.0f}{statistics.median(ratios):>8.2f}", end="")
    print(f"{f'({min(ratios):.2f}-{max(ratios):.2f})':>14}{by_cpu:>8.2f}", flush=True)


@contextmanager
def raw_peer(size: int) -> Iterator[Peer]:
    """Plain blocking sockets that send a message and receive one of the same size."""
    ours, theirs = connected()
    pid = forked(lambda: _raw_server(theirs, size), ours)
    theirs.close()
    out, into = memoryview(bytearray(size)), memoryview(bytearray(size))

    def exchange() -> None:
        ours.sendall(out)
        fill(ours, into)

    try:
        yield Peer(exchange, pid)
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _raw_server(connection: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(size))
    while fill(connection, buffer):
        connection.sendall(buffer)


def fill(connection: socket.socket, into: memoryview) -> bool:
    """Receive all of it; False at the end of the stream."""
    have = 0
    while have < len(into):
        got = connection.recv_into(into[have:])
        if not got:
            return False
        have += got
    return True


@contextmanager
def our_server(size: int) -> Iterator[Peer]:
    """A server that applies each push asynchronously, and a worker that pushes and pulls in one exchange."""
    from reference_trainer.ps.client import Client
    from reference_trainer.ps.frames import Channel
    from reference_trainer.ps.settings import TRAINING, ProcessFault

    ours, theirs = connected()
    config = settings(size)
    pid = forked(lambda: _our_server(theirs, config), ours)
    theirs.close()
    client = Client(
        [Channel(ours, peer="server 0", limit_s=60)], config, ProcessFault({}, role="worker", index=0), index=0
    )
    client.phase = TRAINING
    clock = 0

    def exchange() -> None:
        nonlocal clock
        client.push(clock, [], [], pull=True)
        client.receive_dense()
        clock += 1

    try:
        yield Peer(exchange, pid)
    finally:
        client.close()
        os.waitpid(pid, 0)


def _our_server(connection: socket.socket, config: Any) -> None:
    import torch

    from reference_trainer.ps.connection import ConnectionHandler
    from reference_trainer.ps.frames import Channel
    from reference_trainer.ps.server_state import ConnectedWorker, ServerState
    from reference_trainer.ps.settings import TRAINING, ProcessFault

    host = ServerState(config, ProcessFault({}, role="server", index=0))
    host.prepare(torch.device("cpu"))
    guest = ConnectedWorker(Channel(connection, peer="worker 0", limit_s=60), {"index": 0})
    host.peers[0] = guest
    host.clocks.phase = TRAINING
    ConnectionHandler(host, guest).run()


def settings(size: int) -> Any:
    """The settings of both ends: one dense parameter of `size` bytes."""
    from reference_trainer.ps import settings as config

    params = {
        "rank": 0,
        "index": 0,
        "servers": 1,
        "workers": 1,
        "server_endpoints": ["127.0.0.1:1"],
        "mode": "async",
        "steps": 1 << 30,
        "model": {"dense": [["w", [size // 4]]]},
        "secret": secrets.token_hex(32),
    }
    return config.read(params, "worker")


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection over loopback, without delay."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
    for end in (left, right):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return left, right


def forked(run: Callable[[], None], not_theirs: socket.socket) -> int:
    """Run this function in a forked process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        not_theirs.close()
        os.sched_setaffinity(0, CORES[1:2] or CORES)
        run()
    finally:
        os._exit(0)


def congestion() -> str:
    """The system's congestion control."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
