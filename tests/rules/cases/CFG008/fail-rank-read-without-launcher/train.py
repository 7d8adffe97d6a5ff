import torch.distributed as dist
from ranks import start

rank = start()
dist.init_process_group("nccl")
