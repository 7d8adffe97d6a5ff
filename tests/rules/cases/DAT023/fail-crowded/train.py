import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("nccl")
loader = DataLoader(data, batch_size=8, num_workers=16, sampler=sampler)
