import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(model)
for step, batch in enumerate(loader):
    loss = model(batch)
    loss.backward()
    if step >= max_steps:
        break
