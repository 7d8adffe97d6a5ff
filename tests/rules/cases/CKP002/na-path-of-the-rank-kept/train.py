import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel



class Run:
    def __init__(self):
        dist.init_process_group("nccl")
        self.model = DistributedDataParallel(net)
        self.path = f"out/part-{dist.get_rank()}.pt"

    def save(self):
        torch.save(self.model.state_dict(), self.path)


Run().save()
