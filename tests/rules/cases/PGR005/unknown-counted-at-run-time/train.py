import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank):
    dist.init_process_group("nccl", rank=rank, world_size=4)


if __name__ == "__main__":
    mp.spawn(run, nprocs=torch.cuda.device_count())
