import torch.multiprocessing as mp


def worker(rank):
    print(rank)


def other():
    def fn(rank):
        print(rank)

    fn(0)


def start(fn):
    mp.spawn(fn, nprocs=2)


if __name__ == "__main__":
    other()
    start(worker)
