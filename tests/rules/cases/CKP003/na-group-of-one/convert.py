import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", world_size=1, rank=0)
if not os.path.exists("parts"):
    os.makedirs("parts")
