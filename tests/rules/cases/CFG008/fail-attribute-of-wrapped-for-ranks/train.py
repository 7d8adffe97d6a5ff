import os

import torch
from net import Net
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")
model = Net().cuda()
if torch.distributed.get_world_size() > 1:
    model = DDP(model, device_ids=[local_rank])
print(model.blocks)
