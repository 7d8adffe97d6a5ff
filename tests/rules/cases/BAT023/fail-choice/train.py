import torch.distributed as dist
from torch.utils.data import DataLoader

dist.init_process_group("nccl")
rank = dist.get_rank()
loader = DataLoader(data, batch_size=64 if rank == 0 else 32, num_workers=4)
