import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(model)
for batch in loader:
    loss = model(batch)
    loss.backward()
    stop = torch.tensor(loss.item() < best)
    dist.all_reduce(stop)
    if stop.item():
        break
