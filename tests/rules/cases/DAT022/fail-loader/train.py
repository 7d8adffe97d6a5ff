import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

dist.init_process_group("nccl")
net = DDP(net, device_ids=[local_rank])
loader = DataLoader(train_set, batch_size=32, shuffle=True)
