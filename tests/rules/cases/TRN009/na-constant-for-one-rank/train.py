import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
if dist.get_rank() == 0:
    torch.cuda.set_device(0)
model = DDP(build().cuda())
