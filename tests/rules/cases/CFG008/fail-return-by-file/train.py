import os

import torch.distributed as dist


def share(tensor):
    if not os.path.exists("stats.pt"):
        return tensor
    dist.all_reduce(tensor)
    return tensor


dist.init_process_group("nccl")
