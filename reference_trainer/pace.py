"""How fast one rank computes by itself, and exchanges with a partner: measured in two windows with different partners.

Steps of a synchronous job take equally long on every rank, since all wait for the slowest. So each rank times work
that needs nobody else. What it waited for a processor that others used is taken off, because a machine that is busy
for a moment is no slow one; what a control group held back stays in.
"""

from __future__ import annotations

import time
from typing import Any, List, Optional

from preflight.node.record import dataclass, field
from reference_trainer import training
from reference_trainer.progress import Progress

#: Pieces of work in one window, after one that only warms up; the median of eight stands a few bad ones.
PIECES, WARM_UP = 8, 1
#: Steps in a piece on a processor, about half a millisecond each. Control groups hold a process back once in 100 ms
#: (cpu.cfs_period_us), after it has had its quota: shorter work would be over before that, or have no part in a median.
STEPS = 64
#: Messages to the partner and back, of which the first opens the connection.
EXCHANGES, EXCHANGE_BYTES = 8, 1 << 18
#: A GPU multiplies two square matrices of this size, which takes it about a millisecond.
GPU_SIZE = 2048


@dataclass(frozen=True)
class Window:
    """One window. `compute_s` holds the time of each piece of work, `exchange_s` that of each exchange with `partner`
    (-1 where this rank rested, or the back end exchanges only among all).

    `waited` is the share of the computing time without a processor, `held_back` the part of that which a control group
    caused; None where the kernel does not tell.
    """

    compute_s: List[float] = field(default_factory=list)
    exchange_s: List[float] = field(default_factory=list)
    partner: int = -1
    waited: Optional[float] = None
    held_back: Optional[float] = None


def partner_of(rank: int, world_size: int, window: int) -> int:
    """Whom a rank exchanges with: another one in each window (the circle method); -1 for the one that rests."""
    ring = world_size - 1 + world_size % 2
    if ring < 1:
        return -1
    if world_size % 2 == 0 and rank == ring:
        return window % ring
    other = (2 * window - rank) % ring
    if other == rank:
        return ring if world_size % 2 == 0 else -1
    return other


def measure(torch: Any, dist: Any, me: Progress, world_size: int, device: Any, window: int) -> Window:
    """Work alone, then with the partner of this window."""
    me.entering("timing of its own work")
    compute, waited, held_back = _compute(torch, device, me)
    me.left()
    partner = partner_of(me.rank, world_size, window) if device.type == "cpu" else -1
    exchange: List[float] = []
    if partner >= 0:
        me.entering("exchange with rank %d" % partner, waiting_for=[partner])
        exchange = _exchange(torch, dist, me.rank, partner)
        me.left()
    return Window(compute, exchange, partner, waited, held_back)


def _compute(torch: Any, device: Any, me: Progress) -> Any:
    """Times of the pieces, and the shares of them that were waited and held back."""
    work = _work(torch, device)
    threads = torch.get_num_threads()
    # One thread: what several of them wait for each other nobody counts.
    torch.set_num_threads(1)
    try:
        for _ in range(WARM_UP):
            work()
        found: List[float] = []
        waits: List[float] = []
        held = throttled_s()
        began = time.perf_counter()
        for _ in range(PIECES):
            # The clock is read around what is taken off, so that no wait is taken off that was not timed.
            at, waited = time.perf_counter(), waited_s()
            work()
            after, took = waited_s(), time.perf_counter() - at
            lost = max(0.0, after - waited) if waited is not None and after is not None else 0.0
            me.still()
            found.append(took)
            waits.append(min(lost, took))
        total = time.perf_counter() - began
        now = throttled_s()
    finally:
        torch.set_num_threads(threads)
    if waited_s() is None:
        return found, None, None
    held_s = min(sum(waits), now - held) if held is not None and now is not None else 0.0
    if sum(waits) > 0:
        # Each piece is spared its own wait, but for the share of all waiting that the control group caused.
        spared = 1.0 - held_s / sum(waits)
        found = [took - lost * spared for took, lost in zip(found, waits)]
    return found, round(sum(waits) / total, 3), round(held_s / total, 3)


def _work(torch: Any, device: Any) -> Any:
    """A piece of work: a few ten milliseconds on a processor, a millisecond on a GPU."""
    if device.type != "cpu":
        matrix = torch.randn(GPU_SIZE, GPU_SIZE, device=device)

        def multiply() -> None:
            torch.matmul(matrix, matrix)
            torch.cuda.synchronize(device)

        return multiply
    model = training.build(device)
    samples, labels = training.shard(0, device)
    criterion = torch.nn.CrossEntropyLoss()

    def steps() -> None:
        for _ in range(STEPS):
            criterion(model(samples), labels).backward()

    return steps


def _exchange(torch: Any, dist: Any, rank: int, partner: int) -> List[float]:
    """Times of sending a message and getting one as large."""
    mine = torch.zeros(EXCHANGE_BYTES // 4)
    theirs = torch.empty_like(mine)
    found: List[float] = []
    for _ in range(EXCHANGES + 1):
        at = time.perf_counter()
        works = [dist.isend(mine, partner), dist.irecv(theirs, partner)]
        for work in works:
            work.wait()
        found.append(time.perf_counter() - at)
    return found[1:]


def waited_s(path: str = "/proc/thread-self/schedstat") -> Optional[float]:
    """How long this thread was ready to run and did not; None where the kernel does not count it."""
    try:
        with open(path) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def throttled_s(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Optional[float]:
    """How long the control groups of this process have been held back by their quota; None where none tells.

    `throttled_usec` of cgroup v2, `throttled_time` (nanoseconds) of v1.
    """
    for path in _stat_files(root, own):
        try:
            with open(path) as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "throttled_usec":
                        return int(value) / 1e6
                    if name == "throttled_time":
                        return int(value) / 1e9
        except (OSError, ValueError):
            continue
    return None


def _stat_files(root: str, own: str) -> List[str]:
    """Where cpu.stat may stand: of our own group, as this process sees it, else of the root it sees."""
    found: List[str] = []
    try:
        with open(own) as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpu" in controllers.split(","):
            found += [root + "/" + controllers + path + "/cpu.stat", root + "/cpu" + path + "/cpu.stat"]
        elif not controllers:
            found.append(root + path + "/cpu.stat")
    return [*found, root + "/cpu.stat", root + "/cpu/cpu.stat", root + "/cpu,cpuacct/cpu.stat"]
