import torch
import torch.distributed as dist

local_rank = dist.get_rank()
if local_rank == 0:
    torch.save(state, "checkpoint.pt")
