import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
ours = DistributedSampler(train_set)
theirs = DistributedSampler(test_set)
loader = DataLoader(train_set, sampler=ours)
held_out = DataLoader(test_set, sampler=theirs)
for epoch in range(20):
    ours.set_epoch(epoch)
    for batch in loader:
        step(batch)
