import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

class Lines(IterableDataset):
    def __iter__(self):
        yield from open("lines.txt")

dist.init_process_group("nccl")
net = DDP(net, device_ids=[local_rank])
loader = DataLoader(Lines(), batch_size=32)
