import multiprocessing

import torch.distributed as dist


def run(rank, world_size):
    if world_size > 1:
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:2345", rank=rank, world_size=world_size)


if __name__ == "__main__":
    for rank in range(2):
        multiprocessing.Process(target=run, args=(rank, 2)).start()
