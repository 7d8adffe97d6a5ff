"""The speed of collectives, of a rank's computation and of exchanges with a partner; checks every received bit.

Bus bandwidth as defined by nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes of the message over the time,
times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast. It is the speed
of the slowest link, whatever the number of ranks. Small messages show the latency of one call.

These figures describe a network only if every rank has a core: with more ranks than cores the same call takes up to 13
times as long (measured with Gloo). So each rank reports its number of cores and neighbours, and how long its threads
waited for a CPU.

Steps of a synchronous job take equally long on every rank, since all wait for the slowest. So each rank times work that
depends on no other rank. On a CPU, time used by other processes is subtracted, because a briefly busy machine is not
slow; throttling by a control group is not subtracted. A GPU's own clock times its work, independently of the CPU.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from reference_trainer.collective import steps as training
from reference_trainer.collective.group import Collectives
from reference_trainer.common import messages
from reference_trainer.common import progress as starvation
from reference_trainer.common.messages import KnownMessage
from reference_trainer.common.oracle import Mismatch
from reference_trainer.common.progress import Progress

SMALL_BYTES = 4096
#: The minimum and maximum size of the large message in bytes: backends are fastest there (Gloo from 16 MiB on, NCCL
#: over a fast network at some hundred).
MIN_LARGE_BYTES, MAX_BYTES, MAX_GPU_BYTES = 1 << 20, 1 << 24, 1 << 28
#: Number of timed calls, after an untimed one that opens connections.
SMALL_CALLS, LARGE_CALLS = 5, 3
#: Approximate time budget of all large messages together.
BUDGET_S = 0.3
#: If the smallest large message takes longer than this, no large ones are sent.
MAX_FIRST_MESSAGE_S = 1.0
#: Largest number of ranks for an all-to-all: with more, it opens more connections than a short run has time for.
MAX_ALL_TO_ALL_RANKS = 64
#: The largest part of a GPU's free memory for one message, divided among the ranks that use it; about a dozen of them
#: are held.
_PART_OF_MEMORY = 32


@dataclass(frozen=True)
class CollectiveTiming:
    """One collective at one size. `bytes_per_s` is the bus bandwidth by the median of `times_s` on this rank."""

    operation: str
    message_bytes: int
    times_s: list[float]
    bytes_per_s: float


@dataclass(frozen=True)
class Sweep:
    """The measurements of one rank. `skipped` is why there are no large messages, or which one was skipped.

    `cores` are those of this process's affinity mask, `local_ranks` the ranks on the node; `waited` is the share of the
    time in which its threads were ready and had no CPU (summed over threads, so it may exceed 1); None if the kernel
    does not report it. `load` is the load average of the last minute. `crossing_bytes` is what a node must have
    received from others in all-gathers and all-reduces, by any algorithm. `in_lists` are the collectives that the
    backend supports only on lists of parts, not on whole tensors.
    """

    timed: list[CollectiveTiming] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    skipped: str = ""
    cores: int = 0
    local_ranks: int = 1
    load: float = 0.0
    waited: float | None = None
    crossing_bytes: int = 0
    in_lists: list[str] = field(default_factory=list)


def bus_factor(operation: str, world_size: int) -> float:
    """Return the factor of a message's bytes on each link, by nccl-tests' formula."""
    share = (world_size - 1) / world_size
    return {messages.ALL_REDUCE: 2 * share, messages.BROADCAST: 1.0}.get(operation, share)


def bus_bandwidth(operation: str, message_bytes: int, seconds: float, world_size: int) -> float:
    """Return the bus bandwidth in bytes per second; 0 if no time passed."""
    return message_bytes / seconds * bus_factor(operation, world_size) if seconds > 0 else 0.0


def crossing_bytes(timed: CollectiveTiming, world_size: int, local_ranks: int) -> int:
    """Return the bytes that a node must receive from others in all calls of an all-gather or an all-reduce."""
    calls = len(timed.times_s) + 1
    if timed.operation == messages.ALL_GATHER:
        return calls * timed.message_bytes * (world_size - local_ranks) // world_size
    if timed.operation == messages.ALL_REDUCE and world_size > local_ranks:
        return calls * timed.message_bytes
    return 0


def large_bytes(min_s: float, max_bytes: int) -> int:
    """Return the size of the large message within the budget, if an all-reduce of `MIN_LARGE_BYTES` took `min_s`."""
    calls = len(messages.OPERATIONS) * (LARGE_CALLS + 1)
    size = MIN_LARGE_BYTES
    while 2 * size <= max_bytes and min_s * (2 * size / MIN_LARGE_BYTES) * calls <= BUDGET_S:
        size *= 2
    return size


def sweep(
    torch: Any,
    collectives: Collectives,
    progress: Progress,
    world_size: int,
    device: Any,
    local_ranks: int,
    sharing: int = 1,
) -> tuple[Sweep, list[Mismatch], int]:
    """Run every collective at both sizes; return measurements, faults and comparisons. `sharing` ranks use this GPU."""
    if world_size < 2:
        return Sweep(skipped="a single rank exchanges no messages", cores=_cores(), local_ranks=local_ranks), [], 0
    runner = _Runner(torch, collectives, progress, world_size, device, sharing)
    started_at, waited = time.perf_counter(), starvation.threads_waited_s()
    runner.run_all(SMALL_BYTES, SMALL_CALLS)
    min_s, max_bytes = runner.reduce_time_and_memory(*runner.probe())
    if min_s <= MAX_FIRST_MESSAGE_S:
        runner.run_all(large_bytes(min_s, max_bytes), LARGE_CALLS)
    else:
        runner.skipped.append(
            f"an all-reduce of {MIN_LARGE_BYTES} bytes took {min_s:.1f} s, so larger messages were skipped"
        )
    now, total = starvation.threads_waited_s(), time.perf_counter() - started_at
    share = None if waited is None or now is None else round(max(0.0, now - waited) / total, 3)
    result = Sweep(
        runner.timed,
        runner.unsupported,
        "; ".join(runner.skipped),
        _cores(),
        local_ranks,
        round(os.getloadavg()[0], 2),
        share,
        sum(crossing_bytes(item, world_size, local_ranks) for item in runner.timed),
        sorted(collectives.in_lists.difference(runner.unsupported)),
    )
    return result, runner.mismatches, runner.compared


class _Runner:
    """Runs collectives of one rank and stores the results."""

    def __init__(
        self, torch: Any, collectives: Collectives, progress: Progress, world_size: int, device: Any, sharing: int
    ) -> None:
        self._torch = torch
        self._sharing = sharing
        self._collectives = collectives
        self._progress = progress
        self._world_size = world_size
        self._device = device
        self.timed: list[CollectiveTiming] = []
        self.unsupported: list[str] = []
        self.skipped: list[str] = []
        self.mismatches: list[Mismatch] = []
        self.compared = 0

    def probe(self) -> tuple[float, int]:
        """Return the time of an all-reduce of the smallest large size, and the memory available for a message."""
        tensor = self._torch.zeros(MIN_LARGE_BYTES // 4, device=self._device)
        what = f"trial all_reduce of {MIN_LARGE_BYTES} bytes"
        times = [self._collectives.timed(messages.ALL_REDUCE, tensor, None, what) or 0.0 for _ in range(2)]
        if self._device.type != "cuda":
            return max(times), MAX_BYTES
        free = int(self._torch.cuda.mem_get_info(self._device)[0])
        return max(times[1:]), min(MAX_GPU_BYTES, free // (_PART_OF_MEMORY * self._sharing))

    def reduce_time_and_memory(self, min_s: float, max_bytes: int) -> tuple[float, int]:
        """Return the longest time and the smallest memory of all ranks, because all must choose the same size."""
        tensor = self._torch.tensor([min_s, -float(max_bytes)], dtype=self._torch.float64, device=self._device)
        self._collectives.maximum(tensor, "agreement on the size of messages")
        return float(tensor[0]), int(-float(tensor[1]))

    def run_all(self, message_bytes: int, calls: int) -> None:
        """Run every collective at about this size."""
        elements = messages.elements_of(message_bytes, self._world_size)
        self._progress.entering(f"making messages of {elements * 4} bytes")
        known = KnownMessage(
            self._progress.rank, self._world_size, elements, self._device, self._progress.report_progress
        )
        self._progress.left()
        for operation in messages.OPERATIONS:
            if operation in self.unsupported:
                continue
            if operation == messages.ALL_TO_ALL and self._world_size > MAX_ALL_TO_ALL_RANKS:
                self._note_once(f"all_to_all was skipped, because there are more than {MAX_ALL_TO_ALL_RANKS} ranks")
                continue
            self._measure(known, operation, elements * 4, calls)

    def _measure(self, message: KnownMessage, operation: str, message_bytes: int, calls: int) -> None:
        what = f"{operation} of {message_bytes} bytes, timed"
        # Each call has its own values and memory, created before any call is timed and compared after all of them.
        inputs = [message.sent(operation, call) for call in range(calls + 1)]
        rooms = [message.room(operation) for _ in inputs]
        self._progress.report_progress()
        times: list[float] = []
        for tensor, room in zip(inputs, rooms):
            took = self._collectives.timed(operation, tensor, room, what)
            if took is None:
                self.unsupported.append(operation)
                return
            times.append(took)
        results = [tensor if room is None else room for tensor, room in zip(inputs, rooms)]
        wrong = [mismatch for mismatch in message.check_series(operation, results, what) if mismatch is not None]
        self._progress.report_progress()
        self.compared += len(results)
        # One of them names the fault.
        self.mismatches += wrong[:1]
        median = statistics.median(times[1:])
        rate = bus_bandwidth(operation, message_bytes, median, self._world_size)
        self.timed.append(CollectiveTiming(operation, message_bytes, [round(t, 7) for t in times[1:]], round(rate)))

    def _note_once(self, text: str) -> None:
        if text not in self.skipped:
            self.skipped.append(text)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


#: Pieces of work in one window, after one for warming up; the median of eight tolerates a few bad ones.
PIECES, WARM_UP = 8, 1
#: Steps in a piece on a CPU, about half a millisecond each. Control groups throttle a process once in 100 ms
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
    """One window of measurements.

    `compute_s` holds the time of each piece of work, `exchange_s` that of each exchange with `partner` (-1 if this rank
    had none). `waited` is the share of the computing time without a CPU, `held_back` the part of that due to a control
    group; None on a GPU, or if the kernel does not report it.
    """

    compute_s: list[float] = field(default_factory=list)
    exchange_s: list[float] = field(default_factory=list)
    partner: int = -1
    waited: float | None = None
    held_back: float | None = None


def partner_of(rank: int, world_size: int, window: int) -> int:
    """Return the partner of a rank, a different one in each window (the circle method); -1 for the rank without one."""
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
    """Return the size of a message to a partner, the same on every rank: on GPUs that of the sweep's large messages."""
    if device.type == "cpu":
        return EXCHANGE_BYTES
    return min(max([EXCHANGE_BYTES, *(each.message_bytes for each in sweep.timed)]), MAX_GPU_EXCHANGE_BYTES)


def measure(
    torch: Any, dist: Any, progress: Progress, world_size: int, device: Any, window: int, exchanged: int
) -> Window:
    """Measure only work first, and then exchanges of `exchanged` bytes with the partner in this window."""
    progress.entering("timing of its own work")
    compute, waited, held_back = _compute(torch, device, progress)
    progress.left()
    partner = partner_of(progress.rank, world_size, window)
    exchange: list[float] = []
    if partner >= 0:
        progress.entering(f"exchange with rank {partner}", waiting_for=[partner])
        exchange = _exchange(torch, dist, device, partner, exchanged)
        progress.left()
    return Window(compute, exchange, partner, waited, held_back)


def _compute(torch: Any, device: Any, progress: Progress) -> Any:
    """Return the times of the pieces of work, and the shares of time in which the rank waited and was throttled."""
    work = _work(torch, device)
    on_gpu = device.type != "cpu"
    threads = torch.get_num_threads()
    # With one thread, because waits of threads for each other are not counted.
    torch.set_num_threads(1)
    try:
        for _ in range(WARM_UP):
            work()
        found: list[float] = []
        waits: list[float] = []
        throttled_s = starvation.throttled_s()
        started_at = time.perf_counter()
        for _ in range(PIECES):
            # The clock is read around the subtracted counters, so that no untimed wait is subtracted.
            at, waited = time.perf_counter(), starvation.waited_s()
            own_s = work()
            after, took = starvation.waited_s(), time.perf_counter() - at
            lost = max(0.0, after - waited) if waited is not None and after is not None else 0.0
            progress.report_progress()
            found.append(took if own_s is None else own_s)
            waits.append(min(lost, took))
        total = time.perf_counter() - started_at
        now = starvation.throttled_s()
    finally:
        torch.set_num_threads(threads)
    if on_gpu or starvation.waited_s() is None:
        # CPU time that the thread waiting for a GPU misses does not affect the GPU.
        return found, None, None
    held_s = min(sum(waits), now - throttled_s) if throttled_s is not None and now is not None else 0.0
    if sum(waits) > 0:
        # From each piece its own wait is subtracted, except for the control group's share of all waiting.
        unthrottled_share = 1.0 - held_s / sum(waits)
        found = [took - lost * unthrottled_share for took, lost in zip(found, waits)]
    return found, round(sum(waits) / total, 3), round(held_s / total, 3)


def _work(torch: Any, device: Any) -> Callable[[], float | None]:
    """Return a function that works for some tens of ms on a CPU (a few on a GPU) and returns the GPU's own time."""
    if device.type != "cpu":
        matrix = torch.randn(GPU_SIZE, GPU_SIZE, device=device)
        out = torch.empty_like(matrix)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def multiply() -> float | None:
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

    def steps() -> float | None:
        for _ in range(STEPS):
            criterion(model(samples), labels).backward()
        return None

    return steps


def _exchange(torch: Any, dist: Any, device: Any, partner: int, size: int) -> list[float]:
    """Return the times of sending a message while receiving one of the same size."""
    mine = torch.zeros(size // 4, device=device)
    theirs = torch.empty_like(mine)
    on_gpu = device.type == "cuda"
    found: list[float] = []
    if on_gpu:
        torch.cuda.synchronize(device)
    for _ in range(EXCHANGES + 1):
        at = time.perf_counter()
        # NCCL must get both calls at once: one after the other, each would wait for the other side's receive.
        both = [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, theirs, partner)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        if on_gpu:
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - at)
    return found[1:]
