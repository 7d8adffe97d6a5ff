import torch
import torch.distributed as dist
from model import build
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = FSDP(build(), use_orig_params=True)
optimizer = torch.optim.Adam(model.parameters())
if dist.get_rank() == 0:
    torch.save(FSDP.optim_state_dict(model, optimizer), "optimizer.pt")
