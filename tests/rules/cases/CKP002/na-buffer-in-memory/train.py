import io
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(net)
target = io.BytesIO()
torch.save(model.state_dict(), target)
size = target.tell()
