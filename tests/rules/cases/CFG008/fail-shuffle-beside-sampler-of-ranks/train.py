import os

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")
from data import dataset
from torch.utils.data import DataLoader, DistributedSampler

if torch.cuda.device_count() > 1:
    sampler = DistributedSampler(dataset)
else:
    sampler = None
loader = DataLoader(dataset, batch_size=4, sampler=sampler, shuffle=True)
