import torch.distributed as dist
from settings import parse

args = parse()
dist.init_process_group("nccl")
