import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
model = DDP(net, device_ids=[local_rank])
for batch in loader:
    loss = model(batch)
    loss.backward()
    if dist.get_rank() == 0 and enough():
        break
