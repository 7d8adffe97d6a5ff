import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
net = DDP(net, device_ids=[local_rank])
loader = DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set))
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
