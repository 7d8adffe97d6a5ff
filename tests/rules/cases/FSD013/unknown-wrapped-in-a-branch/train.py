import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
if os.environ.get("SHARDED"):
    model = FSDP(model)
