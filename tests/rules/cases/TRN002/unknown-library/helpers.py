import torch.distributed as dist

def prepared(path):
    if dist.get_rank() == 0:
        convert(path)
        dist.barrier()
