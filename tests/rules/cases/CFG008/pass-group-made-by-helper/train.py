import torch.distributed as dist
from helper import start

start()
print(dist.get_rank())
