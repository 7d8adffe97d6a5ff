"""The speed of one rank's computation and of exchanges with a partner, in two windows with different partners.

Steps of a synchronous job take equally long on every rank, since all wait for the slowest. So each rank times work that
depends on no other rank. On a processor, time in which other processes used it is subtracted, because a briefly busy
machine is not slow; throttling by a control group is not subtracted. A GPU's own clock times its work, whatever the
processor does meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, List, Optional

from reference_trainer.collective import steps as training
from reference_trainer.collective.bandwidth import Sweep
from reference_trainer.common import starvation
from reference_trainer.common.progress import Progress

#: Pieces of work in one window, after one for warming up; the median of eight tolerates a few bad ones.
PIECES, WARM_UP = 8, 1
#: Steps in a piece on a processor, about half a millisecond each. Control groups throttle a process once in 100 ms
#: (cpu.cfs_period_us), after it has used its quota: shorter work would finish before that, or not affect the median.
STEPS = 64
#: Messages to the partner and back, of which the first opens the connection.
EXCHANGES, EXCHANGE_BYTES = 8, 1 << 18
#: A GPU multiplies two square matrices of this size in half a millisecond (H100, float32), and a piece has several, so
#: that starting them takes no noticeable part of its time.
GPU_SIZE, GPU_PRODUCTS = 2048, 8
#: The largest message that GPUs exchange: the sweep's large one, which all ranks chose to take a few milliseconds. The
#: latency of a small one says nothing about a slow card.
MAX_GPU_EXCHANGE_BYTES = 1 << 25


@dataclass(frozen=True)
class Window:
    """One window. `compute_s` holds the time of each piece of work, `exchange_s` that of each exchange with `partner`
    (-1 if this rank had none).

    `waited` is the share of the computing time without a processor, `held_back` the part of that due to a control
    group; None on a GPU, or if the kernel does not report it.
    """

    compute_s: List[float] = field(default_factory=list)
    exchange_s: List[float] = field(default_factory=list)
    partner: int = -1
    waited: Optional[float] = None
    held_back: Optional[float] = None


def partner_of(rank: int, world_size: int, window: int) -> int:
    """The partner of a rank, a different one in each window (the circle method); -1 for the rank without one."""
    ring = world_size - 1 + world_size % 2
    if ring < 1:
        return -1
    if world_size % 2 == 0 and rank == ring:
        return window % ring
    other = (2 * window - rank) % ring
    if other == rank:
        return ring if world_size % 2 == 0 else -1
    return other


def exchange_bytes(sweep: Sweep, device: Any) -> int:
    """The size of a message to a partner, the same on every rank: on GPUs that of the sweep's large messages."""
    if device.type == "cpu":
        return EXCHANGE_BYTES
    return min(max([EXCHANGE_BYTES, *(each.message_bytes for each in sweep.timed)]), MAX_GPU_EXCHANGE_BYTES)


def measure(
    torch: Any, dist: Any, progress: Progress, world_size: int, device: Any, window: int, exchanged: int
) -> Window:
    """Measure only work, then exchanges of messages of `exchanged` bytes with the partner of this window."""
    progress.entering("timing of its own work")
    compute, waited, held_back = _compute(torch, device, progress)
    progress.left()
    partner = partner_of(progress.rank, world_size, window)
    exchange: List[float] = []
    if partner >= 0:
        progress.entering("exchange with rank %d" % partner, waiting_for=[partner])
        exchange = _exchange(torch, dist, device, partner, exchanged)
        progress.left()
    return Window(compute, exchange, partner, waited, held_back)


def _compute(torch: Any, device: Any, progress: Progress) -> Any:
    """Times of the pieces, and the shares in which the rank waited and was throttled."""
    work = _work(torch, device)
    on_gpu = device.type != "cpu"
    threads = torch.get_num_threads()
    # One thread: waits among several are not counted.
    torch.set_num_threads(1)
    try:
        for _ in range(WARM_UP):
            work()
        found: List[float] = []
        waits: List[float] = []
        held = starvation.throttled_s()
        began = time.perf_counter()
        for _ in range(PIECES):
            # The clock is read around the subtracted counters, so that no untimed wait is subtracted.
            at, waited = time.perf_counter(), starvation.waited_s()
            own_s = work()
            after, took = starvation.waited_s(), time.perf_counter() - at
            lost = max(0.0, after - waited) if waited is not None and after is not None else 0.0
            progress.report_progress()
            found.append(took if own_s is None else own_s)
            waits.append(min(lost, took))
        total = time.perf_counter() - began
        now = starvation.throttled_s()
    finally:
        torch.set_num_threads(threads)
    if on_gpu or starvation.waited_s() is None:
        # What the thread that waits for a GPU misses says nothing about the GPU.
        return found, None, None
    held_s = min(sum(waits), now - held) if held is not None and now is not None else 0.0
    if sum(waits) > 0:
        # From each piece its own wait is subtracted, except for the control group's share of all waiting.
        spared = 1.0 - held_s / sum(waits)
        found = [took - lost * spared for took, lost in zip(found, waits)]
    return found, round(sum(waits) / total, 3), round(held_s / total, 3)


def _work(torch: Any, device: Any) -> Callable[[], Optional[float]]:
    """A piece of work: a few tens of milliseconds on a CPU, a few on a GPU; returns the GPU's own time for it."""
    if device.type != "cpu":
        matrix = torch.randn(GPU_SIZE, GPU_SIZE, device=device)
        out = torch.empty_like(matrix)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def multiply() -> Optional[float]:
            began.record()
            for _ in range(GPU_PRODUCTS):
                torch.matmul(matrix, matrix, out=out)
            ended.record()
            ended.synchronize()
            return float(began.elapsed_time(ended)) / 1e3

        return multiply
    model = training.build(device)
    samples, labels = training.shard(0, device)
    criterion = torch.nn.CrossEntropyLoss()

    def steps() -> Optional[float]:
        for _ in range(STEPS):
            criterion(model(samples), labels).backward()
        return None

    return steps


def _exchange(torch: Any, dist: Any, device: Any, partner: int, size: int) -> List[float]:
    """Times of sending a message and receiving one of the same size, at the same time."""
    mine = torch.zeros(size // 4, device=device)
    theirs = torch.empty_like(mine)
    on_gpu = device.type == "cuda"
    found: List[float] = []
    if on_gpu:
        torch.cuda.synchronize(device)
    for _ in range(EXCHANGES + 1):
        at = time.perf_counter()
        # NCCL must be told of both at once: one after the other, each would wait for the other side's receive.
        both = [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, theirs, partner)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        if on_gpu:
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - at)
    return found[1:]
