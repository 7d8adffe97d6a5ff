import torch
import torch.distributed as dist

dist.init_process_group("nccl")
net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
