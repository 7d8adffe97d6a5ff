import torch
import torch.distributed as dist


def finish():
    print("done")
    dist.barrier()


dist.init_process_group("nccl")
if dist.get_rank() == 0:
    finish()
