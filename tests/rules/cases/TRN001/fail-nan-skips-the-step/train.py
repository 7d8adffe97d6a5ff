import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(model)
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch)
    if torch.isnan(loss):
        continue
    loss.backward()
    optimizer.step()
