import torch.multiprocessing as mp

def main(rank):
    work(rank)

mp.spawn(main, nprocs=4)
