import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(net, device_ids=[local_rank])
value = 10.0
while value > 0.1:
    loss = model(next(batches))
    loss.backward()
    value = loss.item()
