"""Programs of four ranks that stall on purpose, to record dumps of torch's Flight Recorder.

`python stalling.py FILE` runs over Gloo every program that is not in FILE yet, and writes all dumps into this
compressed JSON file, without the fields that differ in each run. Which ranks are to blame stands in `PROGRAMS`.
"""

from __future__ import annotations

import datetime
import gzip
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

RANKS = 4
DUMP_AFTER_S, END_AFTER_S = 2.5, 4.0


class Ranks:
    """What a program can use: its rank, a tensor, and groups that all ranks have made and used once."""

    def __init__(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.dist, self.torch = rank, dist, torch
        self.small = torch.ones(4)
        self.groups = {members: dist.new_group(list(members)) for members in ((0, 1), (1, 2), (2, 3), (0, 1, 2))}
        for _ in range(3):
            dist.all_reduce(self.small)
        for members, group in self.groups.items():
            if rank in members:
                dist.all_reduce(self.small, group=group)

    def sum(self, *members: int) -> None:
        """Sum over these ranks, or over all."""
        self.dist.all_reduce(self.small, group=self.groups[members] if members else None)

    def gather(self) -> None:
        """Gather the tensors of all ranks in rank 0."""
        parts = [self.torch.zeros(4) for _ in range(RANKS)] if self.rank == 0 else None
        self.dist.gather(self.small, parts, dst=0)

    def share(self) -> None:
        """Gather the tensors of all ranks in every rank."""
        self.dist.all_gather([self.torch.zeros(4) for _ in range(RANKS)], self.small)


def absent(*ranks: int) -> Callable[[Ranks], None]:
    """These ranks compute without end before a sum over all."""

    def program(own: Ranks) -> None:
        if own.rank in ranks:
            time.sleep(60)
        own.sum()

    return program


def stopped(rank: int) -> Callable[[Ranks], None]:
    """A rank is stopped by a signal and leaves no dump."""

    def program(own: Ranks) -> None:
        if own.rank == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        own.sum()

    return program


def swapped(rank: int) -> Callable[[Ranks], None]:
    """A rank sums and broadcasts in another order."""

    def program(own: Ranks) -> None:
        if own.rank == rank:
            own.sum()
        own.dist.broadcast(own.small, 0)
        own.sum()

    return program


def swapped_gather(own: Ranks) -> None:
    """Rank 3 shares before the barrier, the others after it."""
    if own.rank == 3:
        own.share()
    own.dist.barrier()
    own.share()


def sized(rank: int, *numbers: int, kind: str = "float32") -> Callable[[Ranks], None]:
    """A rank sums another number of elements, or of another type, than the others."""

    def program(own: Ranks) -> None:
        mine, others = numbers
        dtype = getattr(own.torch, kind) if own.rank == rank else own.torch.float32
        own.dist.all_reduce(own.torch.ones(mine if own.rank == rank else others, dtype=dtype))
        own.dist.barrier()

    return program


def in_pair(own: Ranks) -> None:
    """Rank 0 sums in a pair, all others over all ranks."""
    if own.rank == 0:
        own.sum(0, 1)
    own.sum()


def in_late_pair(own: Ranks) -> None:
    """Rank 2 sums in its pair before the sum over all, rank 3 after it."""
    if own.rank == 2:
        own.sum(2, 3)
    own.sum()
    if own.rank == 3:
        own.sum(2, 3)


def slow_beside_absent(own: Ranks) -> None:
    """Rank 1 comes late, and rank 3 never."""
    if own.rank == 1:
        time.sleep(1.0)
    if own.rank == 3:
        time.sleep(60)
    own.sum()


def slow(own: Ranks) -> None:
    """Rank 1 comes late each time; nothing is wrong."""
    for _ in range(2):
        if own.rank == 1:
            time.sleep(0.5)
        own.sum()


def short_loop(own: Ranks) -> None:
    """Rank 2 has one step less and is at the barrier already."""
    for _ in range(2 if own.rank == 2 else 3):
        own.sum()
    own.dist.barrier()


def caught(rank: int) -> Callable[[Ranks], None]:
    """A rank catches an error before the sum and goes to the last gathering of results."""

    def program(own: Ranks) -> None:
        with suppress(ValueError):
            if own.rank == rank:
                raise ValueError
            own.sum()
        own.share()

    return program


def pipeline(first: int) -> Callable[[Ranks], None]:
    """Each rank receives from the one before it; `first` computes without end. Then all sum."""

    def program(own: Ranks) -> None:
        if own.rank > 0:
            own.dist.recv(own.small, own.rank - 1)
        if own.rank == first:
            time.sleep(60)
        if own.rank < RANKS - 1:
            own.dist.send(own.small, own.rank + 1)
        own.sum()

    return program


def chain(own: Ranks) -> None:
    """Rank 3 computes; each other rank waits for the next one in a pair."""
    if own.rank == 3:
        time.sleep(60)
    for members in ((2, 3), (1, 2), (0, 1)):
        if own.rank in members:
            own.sum(*members)


def cross(own: Ranks) -> None:
    """Rank 0 waits for rank 1 in one group, and rank 1 for rank 0 in another."""
    for members in ((0, 1), (0, 1, 2)) if own.rank == 0 else ((0, 1, 2), (0, 1)):
        if own.rank in members:
            own.sum(*members)


def two_pairs(own: Ranks) -> None:
    """In each pair one rank computes."""
    if own.rank in (1, 3):
        time.sleep(60)
    own.sum(*((0, 1) if own.rank < 2 else (2, 3)))


def gathering(own: Ranks) -> None:
    """Rank 2 does not take part in the second gathering; those that only send may go on."""
    own.gather()
    if own.rank == 2:
        time.sleep(60)
    own.gather()
    own.sum()


def broadcasting(rank: int) -> Callable[[Ranks], None]:
    """A rank does not take part in a broadcast; the others go on to a barrier."""

    def program(own: Ranks) -> None:
        if own.rank == rank:
            time.sleep(60)
        own.dist.broadcast(own.small, 0)
        own.dist.barrier()

    return program


def one_of_two(rank: int) -> Callable[[Ranks], None]:
    """A rank starts only one of two sums."""

    def program(own: Ranks) -> None:
        works = [own.dist.all_reduce(own.torch.ones(4), async_op=True) for _ in range(1 if own.rank == rank else 2)]
        for work in works:
            work.wait()

    return program


def never_received(own: Ranks) -> None:
    """Rank 1 sends to rank 0, which computes instead."""
    if own.rank == 1:
        own.dist.send(own.torch.ones(1 << 22), 0)
    if own.rank == 0:
        time.sleep(60)


def lost_dump(own: Ranks) -> None:
    """Rank 1 computes; rank 2 waits like the others, and its dump is lost."""
    absent(1)(own)


#: Each program, and the ranks to blame: more than one also where they cannot be told apart.
PROGRAMS: dict[str, tuple[Callable[[Ranks], None], tuple[int, ...]]] = {
    "absent-0": (absent(0), (0,)),
    "absent-1": (absent(1), (1,)),
    "absent-3": (absent(3), (3,)),
    "absent-1-3": (absent(1, 3), (1, 3)),
    "stopped-1": (stopped(1), (1,)),
    "stopped-2": (stopped(2), (2,)),
    "swapped-1": (swapped(1), (1,)),
    "swapped-2": (swapped(2), (2,)),
    "swapped-gather-3": (swapped_gather, (3,)),
    "sizes-1": (sized(1, 8, 4), (1,)),
    "sizes-0": (sized(0, 2, 4), (0,)),
    "types-0": (sized(0, 4, 4, kind="int32"), (0,)),
    "types-3": (sized(3, 4, 4, kind="float16"), (3,)),
    "types-2": (sized(2, 4, 4, kind="float64"), (2,)),
    "pair-0": (in_pair, (0, 1)),
    "late-pair-2": (in_late_pair, (2, 3)),
    "slow-1-absent-3": (slow_beside_absent, (3,)),
    "slow-1": (slow, ()),
    "short-loop-2": (short_loop, (2,)),
    "caught-0": (caught(0), (0,)),
    "caught-1": (caught(1), (1,)),
    "caught-3": (caught(3), (3,)),
    # Gloo records no messages: a rank that waits for one is not told apart from a rank that computes.
    "pipeline-0": (pipeline(0), ()),
    "pipeline-1": (pipeline(1), (1, 2, 3)),
    "pipeline-2": (pipeline(2), (2, 3)),
    "chain-3": (chain, (3,)),
    "cross-0-1": (cross, (0, 1)),
    "two-pairs": (two_pairs, (1, 3)),
    "gathering-2": (gathering, (2,)),
    "broadcasting-2": (broadcasting(2), (2,)),
    "broadcasting-3": (broadcasting(3), (3,)),
    "one-of-two-0": (one_of_two(0), (0,)),
    "one-of-two-1": (one_of_two(1), (1,)),
    "never-received-0": (never_received, (0,)),
    "lost-dump-1": (lost_dump, (1,)),
}


def run(rank: int, name: str, folder: Path, port: int) -> None:
    """Run one rank; another thread writes its dump and ends it."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_FR_BUFFER_SIZE="200")
    import torch
    import torch.distributed as dist

    def dump_and_end() -> None:
        time.sleep(DUMP_AFTER_S)
        (folder / str(rank)).write_bytes(torch._C._distributed_c10d._dump_fr_trace())
        time.sleep(END_AFTER_S - DUMP_AFTER_S)
        os._exit(0)

    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    own = Ranks(rank)
    threading.Thread(target=dump_and_end, daemon=True).start()
    # An operation that Gloo refuses ends with an error; the dump is the same.
    with suppress(RuntimeError):
        PROGRAMS[name][0](own)
    time.sleep(60)


def recorded(name: str) -> dict[int, Any]:
    """The dumps of one program by rank, without what differs in each run."""
    from preflight.commands.diagnose import flight_recorder

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        children = []
        for rank in range(RANKS):
            if not (child := os.fork()):
                try:
                    run(rank, name, folder, port)
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(END_AFTER_S)
        until = time.monotonic() + 60
        while time.monotonic() < until and len(list(folder.iterdir())) < RANKS - name.startswith("stopped-"):
            time.sleep(0.2)
        time.sleep(END_AFTER_S - DUMP_AFTER_S)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        dumps = {int(path.name): flight_recorder.load(path.read_bytes()) for path in sorted(folder.iterdir())}
    if name == "lost-dump-1":
        del dumps[2]
    for dump in dumps.values():
        for entry in dump["entries"]:
            for key in ("thread_name", "thread_id", "time_created_ns", "timeout_ms", "frames"):
                entry.pop(key, None)
    return dumps


if __name__ == "__main__":
    # Once, before the processes fork.
    importlib.import_module("torch.distributed")
    target = Path(sys.argv[1])
    known = json.loads(gzip.decompress(target.read_bytes())) if target.exists() else {}
    sets = {name: known.get(name) or recorded(name) for name in PROGRAMS}
    target.write_bytes(gzip.compress(json.dumps(sets, sort_keys=True).encode(), mtime=0))
