import torch.multiprocessing as mp


def run(rank):
    print(rank)


def main():
    mp.spawn(run, nprocs=4)


main()
