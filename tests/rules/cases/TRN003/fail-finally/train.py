import torch.distributed as dist

dist.init_process_group("nccl")
try:
    train()
finally:
    dist.destroy_process_group()
