import os

import torch

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")
from data import dataset
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(dataset) if torch.distributed.get_world_size() > 1 else None
if sampler is None:
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, shuffle=True)
else:
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
