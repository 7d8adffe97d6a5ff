import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset


class Lines(IterableDataset):
    def __iter__(self):
        yield from open("lines.txt")


dist.init_process_group("nccl")
data = Lines()
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
