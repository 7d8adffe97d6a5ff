import torch.distributed as dist
from acme import wait

dist.init_process_group("nccl")
if dist.get_rank() != 0:
    wait()
if dist.get_rank() == 0:
    prepare()
    dist.barrier()
train()
