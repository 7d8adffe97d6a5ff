"""A program of three ranks that hangs on purpose; each rank writes the dump of torch's Flight Recorder into a folder.

`python hanging.py MODE FOLDER PORT`, with MODE `missing`, `order`, `other`, `group` or `sizes`.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3
#: When a rank writes its dump, and when it ends.
DUMP_AFTER_S, END_AFTER_S = 3.0, 5.0


def write_dump(rank: int, folder: Path) -> None:
    """Write both forms of the dump, named as torch names them."""
    recorder = torch._C._distributed_c10d
    pickled, text = recorder._dump_fr_trace(), recorder._dump_fr_trace_json()
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickled)
    (folder / f"nccl_trace_rank_{rank}.json").write_bytes(text.encode() if isinstance(text, str) else text)


def train(rank: int, mode: str, folder: Path) -> None:
    """Three collectives that end, then one that does not."""
    tensor = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(tensor)
    if mode == "missing" and rank == 1:
        time.sleep(60)
    if mode == "order":
        if rank == 1:
            dist.all_reduce(tensor)
            dist.broadcast(tensor, 0)
        else:
            dist.broadcast(tensor, 0)
            dist.all_reduce(tensor)
    elif mode == "other" and rank == 1:
        dist.barrier()
    elif mode == "group":
        pair = dist.new_group([0, 1])
        if rank == 0:
            dist.all_reduce(tensor, group=pair)
        dist.all_reduce(tensor)
    elif mode == "sizes":
        # Gloo ends this one, so the dump is written at once; rank 0 comes last.
        time.sleep(2.0 if rank == 0 else 0.0)
        work = dist.broadcast(torch.ones(8 if rank == 2 else 4), 0, async_op=True)
        write_dump(rank, folder)
        work.wait()
    else:
        dist.all_reduce(tensor)
    time.sleep(60)


def dump_and_end(rank: int, folder: Path) -> None:
    """Write the dump while the main thread waits, then end the rank."""
    time.sleep(DUMP_AFTER_S)
    write_dump(rank, folder)
    time.sleep(END_AFTER_S - DUMP_AFTER_S)
    os._exit(0)


def main(rank: int, mode: str, folder: Path, port: int) -> None:
    """Run one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_FR_BUFFER_SIZE="200")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    if mode == "sizes":
        threading.Timer(END_AFTER_S, os._exit, (0,)).start()
    else:
        threading.Thread(target=dump_and_end, args=(rank, folder), daemon=True).start()
    train(rank, mode, folder)


if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])), nprocs=RANKS)
