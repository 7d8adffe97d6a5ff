import torch.distributed as dist

dist.init_process_group("nccl")
model = build()
if dist.get_rank() == 0:
    if resumed():
        dist.barrier()
