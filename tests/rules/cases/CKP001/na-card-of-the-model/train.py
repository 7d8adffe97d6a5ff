import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
if args.local_rank == 0:
    model_card.save("README.md")
