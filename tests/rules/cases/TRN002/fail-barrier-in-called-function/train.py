import os

import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])


def load(examples):
    if local_rank in (-1, 0):
        torch.save(examples, "cache.pt")
    if local_rank == 0:
        dist.barrier()
    return examples


dist.init_process_group("nccl")
load([1])
