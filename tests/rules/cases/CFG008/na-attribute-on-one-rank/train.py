import os

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")
from net import Net

world_size = int(os.environ.get("WORLD_SIZE", 1))
distributed = world_size > 1
model = Net().cuda()
if distributed:
    model = DDP(model, device_ids=[local_rank])
if world_size == 1:
    model.freeze()
if local_rank == -1:
    model.freeze()
if not distributed:
    model.freeze()
world_size == 1 and model.freeze()
freeze = model.module.freeze if distributed else model.freeze
