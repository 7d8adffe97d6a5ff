import torch.distributed as dist

dist.init_process_group("nccl")
try:
    train()
except Exception as error:
    print(error)
dist.destroy_process_group()
