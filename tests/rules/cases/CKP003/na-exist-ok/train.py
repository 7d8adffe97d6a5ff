import os
import torch.distributed as dist

dist.init_process_group("nccl")
os.makedirs("results", exist_ok=True)
if dist.get_rank() == 0:
    os.mkdir("plots")
try:
    os.mkdir("cache")
except FileExistsError:
    pass
