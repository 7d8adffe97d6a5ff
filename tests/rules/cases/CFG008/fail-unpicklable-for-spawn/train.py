import torch.multiprocessing as mp


def run(rank, schedule):
    print(schedule(rank))


if __name__ == "__main__":
    mp.spawn(run, args=(lambda rank: rank,), nprocs=2)
