import os

import torch
import torch.distributed as dist
from datasets import load_dataset
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
data = load_dataset("allenai/c4", "en", split="train", streaming=True)
model = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[local_rank])
