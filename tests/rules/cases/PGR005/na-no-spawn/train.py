import torch.distributed as dist

dist.init_process_group("nccl", world_size=4, rank=0)
