import os
import torch.distributed as dist

dist.init_process_group("nccl")
out = "results"
if not os.path.exists(out):
    os.makedirs(out)
