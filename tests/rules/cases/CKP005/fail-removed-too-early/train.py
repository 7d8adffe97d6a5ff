import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
path = "start.pt"
weights = torch.load(path)
if dist.get_rank() == 0:
    os.remove(path)
