import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = int(os.environ["RANK"])
device = rank
model = DDP(model, device_ids=[device])
