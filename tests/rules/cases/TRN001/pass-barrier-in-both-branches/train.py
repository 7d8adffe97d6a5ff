import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
model = DistributedDataParallel(net)
for step in range(1000):
    if dist.get_rank() == 0:
        prepare(step)
        dist.barrier()
        continue
    dist.barrier()
    fetch(step)
