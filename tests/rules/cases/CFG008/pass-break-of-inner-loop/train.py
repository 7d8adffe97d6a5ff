import torch.distributed as dist
from work import oldest, remove

dist.init_process_group("nccl")
for epoch in range(3):
    if dist.get_rank() == 0:
        while True:
            if oldest() is None:
                break
            remove(oldest())
    dist.barrier()
