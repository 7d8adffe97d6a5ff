import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
net = DDP(net, device_ids=[local_rank])
if args.sync_bn:
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
