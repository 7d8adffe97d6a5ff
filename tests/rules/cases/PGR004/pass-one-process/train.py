import torch.multiprocessing as mp

def main(rank):
    work(rank)

if __name__ == "__main__":
    mp.spawn(main, nprocs=4)
