import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
theirs = DistributedSampler(test_set)
held_out = DataLoader(test_set, sampler=theirs)
for epoch in range(20):
    for batch in held_out:
        score(batch)
