import torch
import torch.multiprocessing as mp

def main(rank, world):
    torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=world)

if __name__ == "__main__":
    n = torch.cuda.device_count()
    mp.spawn(main, args=(n,), nprocs=n)
