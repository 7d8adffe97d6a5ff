import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
first = torch.nn.Linear(8, 8).cuda()
head_optimizer = torch.optim.AdamW(first.parameters(), lr=1e-4)
first = FSDP(first, use_orig_params=True)
second = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(second.parameters(), lr=1e-4)
second = FSDP(second)
optimizer = torch.optim.AdamW(second.parameters(), lr=1e-4)
