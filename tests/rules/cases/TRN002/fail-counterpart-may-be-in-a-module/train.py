import torch.distributed as dist
from ranks import wait

dist.init_process_group("nccl")
if dist.get_rank() != 0:
    wait()
if dist.get_rank() == 0:
    prepare()
    dist.barrier()
train()
