import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() != 0:
    dist.barrier()
prepare()
if dist.get_rank() == 0:
    dist.barrier()
