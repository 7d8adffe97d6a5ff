import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def work(rank, world_size, model):
    dist.init_process_group("nccl", init_method="tcp://localhost:29500", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    return FSDP(model, device_id=rank)
