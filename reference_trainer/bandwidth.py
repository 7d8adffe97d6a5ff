"""How fast each collective is at a small and a large message, with a check of every bit that came.

Bus bandwidth is what nccl-tests calls so (NVIDIA/nccl-tests, doc/PERFORMANCE.md): bytes of the message over the time,
times 2(n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast. It says how fast
the slowest link carried data, whatever the number of ranks. Small messages tell the delay of one call.

What it says of a network holds only where every rank has a core: with more ranks than cores the same call takes up to
13 times as long (measured with Gloo). So each rank says how many cores and neighbours it had, and how long its threads
waited for a processor meanwhile.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, List, Optional, Tuple

from preflight.node.record import dataclass, field
from reference_trainer import messages
from reference_trainer.group import Collectives
from reference_trainer.messages import Known
from reference_trainer.oracle import Mismatch
from reference_trainer.progress import Progress

SMALL_BYTES = 4096
#: The large message has at least so many bytes, and at most so many: there back ends are at their best (Gloo from
#: 16 MiB on, NCCL over a fast network at some hundred).
LEAST_BYTES, MOST_BYTES, MOST_GPU_BYTES = 1 << 20, 1 << 24, 1 << 28
#: Timed calls, after one that is not counted: it opens connections.
SMALL_CALLS, LARGE_CALLS = 5, 3
#: What all large messages together may take, about.
BUDGET_S = 0.3
#: Where the least large message takes longer than this, no large ones are sent.
SLOWEST_S = 1.0
#: Above so many ranks an all-to-all opens more connections than a short run has time for.
MOST_ALL_TO_ALL_RANKS = 64
#: Of a GPU's free memory no more than this part is taken by one message; about ten of them are held.
_PART_OF_MEMORY = 32


@dataclass(frozen=True)
class Timed:
    """One collective at one size. `bytes_per_s` is the bus bandwidth by the median of `times_s` on this rank."""

    operation: str
    message_bytes: int
    times_s: List[float]
    bytes_per_s: float


@dataclass(frozen=True)
class Sweep:
    """What one rank measured. `skipped` says why there are no large messages, or which one was left out.

    `cores` are those of this process's affinity mask, `local_ranks` how many share the node; `waited` is how much of
    the time its threads were ready and had no processor (their sum, so that it may exceed 1); None where the kernel
    does not tell. `load` is the load average of the last minute. `crossing_bytes` is what a node must have got from
    others in all-gathers and all-reduces, whatever way they go. `in_lists` are collectives that the back end has over
    lists of parts only, not over whole tensors.
    """

    timed: List[Timed] = field(default_factory=list)
    unsupported: List[str] = field(default_factory=list)
    skipped: str = ""
    cores: int = 0
    local_ranks: int = 1
    load: float = 0.0
    waited: Optional[float] = None
    crossing_bytes: int = 0
    in_lists: List[str] = field(default_factory=list)


def bus_factor(operation: str, world_size: int) -> float:
    """What a message's bytes count on each link, by nccl-tests' formula."""
    share = (world_size - 1) / world_size
    return {messages.ALL_REDUCE: 2 * share, messages.BROADCAST: 1.0}.get(operation, share)


def bus_bandwidth(operation: str, message_bytes: int, seconds: float, world_size: int) -> float:
    """Bytes a second; 0 where no time passed."""
    return message_bytes / seconds * bus_factor(operation, world_size) if seconds > 0 else 0.0


def crossing_bytes(timed: Timed, world_size: int, local_ranks: int) -> int:
    """What a node must get from others in all calls of an all-gather (others' parts) or an all-reduce (one sum)."""
    calls = len(timed.times_s) + 1
    if timed.operation == messages.ALL_GATHER:
        return calls * timed.message_bytes * (world_size - local_ranks) // world_size
    if timed.operation == messages.ALL_REDUCE and world_size > local_ranks:
        return calls * timed.message_bytes
    return 0


def large_bytes(least_s: float, most_bytes: int) -> int:
    """The size of the large message, where an all-reduce of `LEAST_BYTES` took `least_s`: so that the budget holds."""
    calls = len(messages.OPERATIONS) * (LARGE_CALLS + 1)
    size = LEAST_BYTES
    while 2 * size <= most_bytes and least_s * (2 * size / LEAST_BYTES) * calls <= BUDGET_S:
        size *= 2
    return size


def sweep(
    torch: Any, collectives: Collectives, me: Progress, world_size: int, device: Any, local_ranks: int
) -> Tuple[Sweep, List[Mismatch], int]:
    """Every collective at both sizes; returns what was measured, what was wrong, and how many results were compared."""
    if world_size < 2:
        return Sweep(skipped="one rank alone sends nothing", cores=_cores(), local_ranks=local_ranks), [], 0
    runner = _Runner(torch, collectives, me, world_size, device)
    began, waited = time.perf_counter(), threads_waited_s()
    runner.all_at(SMALL_BYTES, SMALL_CALLS)
    least_s, most_bytes = runner.agree(*runner.probe())
    if least_s <= SLOWEST_S:
        runner.all_at(large_bytes(least_s, most_bytes), LARGE_CALLS)
    else:
        runner.skipped.append("an all-reduce of %d bytes took %.1f s: no larger messages" % (LEAST_BYTES, least_s))
    now, total = threads_waited_s(), time.perf_counter() - began
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
    """Runs collectives of one rank and keeps what came of them."""

    def __init__(self, torch: Any, collectives: Collectives, me: Progress, world_size: int, device: Any) -> None:
        self._torch = torch
        self._collectives = collectives
        self._me = me
        self._world_size = world_size
        self._device = device
        self.timed: List[Timed] = []
        self.unsupported: List[str] = []
        self.skipped: List[str] = []
        self.mismatches: List[Mismatch] = []
        self.compared = 0

    def probe(self) -> Tuple[float, int]:
        """How long an all-reduce of the least large size takes, and how much memory a message may have."""
        tensor = self._torch.zeros(LEAST_BYTES // 4, device=self._device)
        what = "all_reduce of %d bytes, a trial" % LEAST_BYTES
        times = [self._collectives.timed(messages.ALL_REDUCE, tensor, None, what) or 0.0 for _ in range(2)]
        if self._device.type != "cuda":
            return max(times), MOST_BYTES
        return max(times[1:]), min(
            MOST_GPU_BYTES, int(self._torch.cuda.mem_get_info(self._device)[0]) // _PART_OF_MEMORY
        )

    def agree(self, least_s: float, most_bytes: int) -> Tuple[float, int]:
        """The longest time and the least memory of all ranks, because all must choose the same size."""
        tensor = self._torch.tensor([least_s, -float(most_bytes)], dtype=self._torch.float64, device=self._device)
        self._collectives.largest(tensor, "agreement on the size of messages")
        return float(tensor[0]), int(-float(tensor[1]))

    def all_at(self, message_bytes: int, calls: int) -> None:
        """Every collective at about this size."""
        elements = messages.elements_of(message_bytes, self._world_size)
        self._me.entering("making messages of %d bytes" % (elements * 4))
        known = Known(self._me.rank, self._world_size, elements, self._device, self._me.still)
        self._me.left()
        for operation in messages.OPERATIONS:
            if operation in self.unsupported:
                continue
            if operation == messages.ALL_TO_ALL and self._world_size > MOST_ALL_TO_ALL_RANKS:
                self._say_once("no all_to_all with more than %d ranks" % MOST_ALL_TO_ALL_RANKS)
                continue
            self._one(known, operation, elements * 4, calls)

    def _one(self, known: Known, operation: str, message_bytes: int, calls: int) -> None:
        what = "%s of %d bytes, timed" % (operation, message_bytes)
        sent = known.sent(operation)
        self._me.still()
        room = known.room(operation)
        # A sum takes the place of what was sent: each call needs its own, made before any of them is timed.
        inputs = [sent.clone() for _ in range(calls)] + [sent] if operation == messages.ALL_REDUCE else [sent]
        self._me.still()
        times: List[float] = []
        for call in range(calls + 1):
            tensor = inputs[call % len(inputs)]
            if room is not None and call == calls:
                room.zero_()
            took = self._collectives.timed(operation, tensor, room, what)
            if took is None:
                self.unsupported.append(operation)
                return
            times.append(took)
        mismatch = known.check(operation, tensor if room is None else room, what)
        self._me.still()
        self.compared += 1
        if mismatch is not None:
            self.mismatches.append(mismatch)
        median = statistics.median(times[1:])
        rate = bus_bandwidth(operation, message_bytes, median, self._world_size)
        self.timed.append(Timed(operation, message_bytes, [round(t, 7) for t in times[1:]], round(rate)))

    def _say_once(self, text: str) -> None:
        if text not in self.skipped:
            self.skipped.append(text)


def threads_waited_s(root: str = "/proc/self/task") -> Optional[float]:
    """How long all threads of this process together were ready to run and did not; None where that is not counted.

    The second number of `schedstat` (Documentation/scheduler/sched-stats.rst), nanoseconds.
    """
    total = 0
    try:
        for thread in os.listdir(root):
            try:
                with open("%s/%s/schedstat" % (root, thread)) as file:
                    total += int(file.read().split()[1])
            except FileNotFoundError:
                if not os.path.isdir("%s/%s" % (root, thread)):
                    continue  # a thread that has just ended
                return None
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def _cores() -> int:
    return len(os.sched_getaffinity(0))
