import torch.distributed as dist


def rank():
    if not dist.is_initialized():
        return 0
    return dist.get_rank()


print(rank())
