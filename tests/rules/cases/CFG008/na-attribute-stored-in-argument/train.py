import os

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")
from net import Net

from evaluation import evaluate

model = DDP(Net().cuda(), device_ids=[local_rank])
evaluate(model)
