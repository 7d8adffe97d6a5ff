import torch.distributed as dist

dist.init_process_group("nccl")
try:
    train()
except Exception:
    log()
    raise
else:
    dist.destroy_process_group()
