"""The speed of each collective with a small and a large message, and a check of every received bit.

Bus bandwidth as defined by nccl-tests (NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes of the message over the time,
times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast. It is the speed
of the slowest link, whatever the number of ranks. Small messages show the latency of one call.

It characterises a network only if every rank has a core: with more ranks than cores the same call takes up to 13 times
as long (measured with Gloo). So each rank reports its number of cores and neighbours, and how long its threads waited
for a CPU.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

from reference_trainer.collective.group import Collectives
from reference_trainer.common import messages, starvation
from reference_trainer.common.messages import KnownMessage
from reference_trainer.common.oracle import Mismatch
from reference_trainer.common.progress import Progress

SMALL_BYTES = 4096
#: The minimum and maximum size of the large message in bytes: backends are fastest there (Gloo from 16 MiB on, NCCL
#: over a fast network at some hundred).
MIN_LARGE_BYTES, MAX_BYTES, MAX_GPU_BYTES = 1 << 20, 1 << 24, 1 << 28
#: Timed calls, after one that is not counted: it opens connections.
SMALL_CALLS, LARGE_CALLS = 5, 3
#: Approximate time budget of all large messages together.
BUDGET_S = 0.3
#: If the smallest large message takes longer than this, no large ones are sent.
MAX_FIRST_MESSAGE_S = 1.0
#: With more ranks an all-to-all opens more connections than a short run has time for.
MAX_ALL_TO_ALL_RANKS = 64
#: The largest part of a GPU's free memory for one message, divided among the ranks that use it; about a dozen of them
#: are held.
_PART_OF_MEMORY = 32


@dataclass(frozen=True)
class CollectiveTiming:
    """One collective at one size. `bytes_per_s` is the bus bandwidth by the median of `times_s` on this rank."""

    operation: str
    message_bytes: int
    times_s: List[float]
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

    timed: List[CollectiveTiming] = field(default_factory=list)
    unsupported: List[str] = field(default_factory=list)
    skipped: str = ""
    cores: int = 0
    local_ranks: int = 1
    load: float = 0.0
    waited: Optional[float] = None
    crossing_bytes: int = 0
    in_lists: List[str] = field(default_factory=list)


def bus_factor(operation: str, world_size: int) -> float:
    """The factor of a message's bytes on each link, by nccl-tests' formula."""
    share = (world_size - 1) / world_size
    return {messages.ALL_REDUCE: 2 * share, messages.BROADCAST: 1.0}.get(operation, share)


def bus_bandwidth(operation: str, message_bytes: int, seconds: float, world_size: int) -> float:
    """Bytes per second; 0 if no time passed."""
    return message_bytes / seconds * bus_factor(operation, world_size) if seconds > 0 else 0.0


def crossing_bytes(timed: CollectiveTiming, world_size: int, local_ranks: int) -> int:
    """The bytes that a node must receive from others in all calls of an all-gather (others' parts) or an all-reduce
    (one sum)."""
    calls = len(timed.times_s) + 1
    if timed.operation == messages.ALL_GATHER:
        return calls * timed.message_bytes * (world_size - local_ranks) // world_size
    if timed.operation == messages.ALL_REDUCE and world_size > local_ranks:
        return calls * timed.message_bytes
    return 0


def large_bytes(min_s: float, max_bytes: int) -> int:
    """The size of the large message within the budget, if an all-reduce of `MIN_LARGE_BYTES` took `min_s`."""
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
) -> Tuple[Sweep, List[Mismatch], int]:
    """Run every collective at both sizes; returns the measurements, the faults, and the number of compared results.

    Args:
        sharing: the ranks that use this rank's GPU, and its memory.
    """
    if world_size < 2:
        return Sweep(skipped="a single rank exchanges no messages", cores=_cores(), local_ranks=local_ranks), [], 0
    runner = _Runner(torch, collectives, progress, world_size, device, sharing)
    began, waited = time.perf_counter(), starvation.threads_waited_s()
    runner.run_all(SMALL_BYTES, SMALL_CALLS)
    min_s, max_bytes = runner.slowest_and_smallest(*runner.probe())
    if min_s <= MAX_FIRST_MESSAGE_S:
        runner.run_all(large_bytes(min_s, max_bytes), LARGE_CALLS)
    else:
        runner.skipped.append("an all-reduce of %d bytes took %.1f s: no larger messages" % (MIN_LARGE_BYTES, min_s))
    now, total = starvation.threads_waited_s(), time.perf_counter() - began
    share = None if waited is None or now is None else round(max(0.0, now - waited) / total, 3)
    found = Sweep(
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
    return found, runner.mismatches, runner.compared


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
        self.timed: List[CollectiveTiming] = []
        self.unsupported: List[str] = []
        self.skipped: List[str] = []
        self.mismatches: List[Mismatch] = []
        self.compared = 0

    def probe(self) -> Tuple[float, int]:
        """Return the time of an all-reduce of the smallest large size, and the memory available for a message."""
        tensor = self._torch.zeros(MIN_LARGE_BYTES // 4, device=self._device)
        what = "trial all_reduce of %d bytes" % MIN_LARGE_BYTES
        times = [self._collectives.timed(messages.ALL_REDUCE, tensor, None, what) or 0.0 for _ in range(2)]
        if self._device.type != "cuda":
            return max(times), MAX_BYTES
        free = int(self._torch.cuda.mem_get_info(self._device)[0])
        return max(times[1:]), min(MAX_GPU_BYTES, free // (_PART_OF_MEMORY * self._sharing))

    def slowest_and_smallest(self, min_s: float, max_bytes: int) -> Tuple[float, int]:
        """Return the longest time and the smallest memory of all ranks, because all must choose the same size."""
        tensor = self._torch.tensor([min_s, -float(max_bytes)], dtype=self._torch.float64, device=self._device)
        self._collectives.maximum(tensor, "agreement on the size of messages")
        return float(tensor[0]), int(-float(tensor[1]))

    def run_all(self, message_bytes: int, calls: int) -> None:
        """Run every collective at about this size."""
        elements = messages.elements_of(message_bytes, self._world_size)
        self._progress.entering("making messages of %d bytes" % (elements * 4))
        known = KnownMessage(
            self._progress.rank, self._world_size, elements, self._device, self._progress.report_progress
        )
        self._progress.left()
        for operation in messages.OPERATIONS:
            if operation in self.unsupported:
                continue
            if operation == messages.ALL_TO_ALL and self._world_size > MAX_ALL_TO_ALL_RANKS:
                self._note_once("all_to_all was skipped with more than %d ranks" % MAX_ALL_TO_ALL_RANKS)
                continue
            self._measure(known, operation, elements * 4, calls)

    def _measure(self, known: KnownMessage, operation: str, message_bytes: int, calls: int) -> None:
        what = "%s of %d bytes, timed" % (operation, message_bytes)
        # Each call has its own values and memory, made before any of them is timed and compared after all of them.
        inputs = [known.sent(operation, call) for call in range(calls + 1)]
        rooms = [known.room(operation) for _ in inputs]
        self._progress.report_progress()
        times: List[float] = []
        for tensor, room in zip(inputs, rooms):
            took = self._collectives.timed(operation, tensor, room, what)
            if took is None:
                self.unsupported.append(operation)
                return
            times.append(took)
        results = [tensor if room is None else room for tensor, room in zip(inputs, rooms)]
        wrong = [mismatch for mismatch in known.check_series(operation, results, what) if mismatch is not None]
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
