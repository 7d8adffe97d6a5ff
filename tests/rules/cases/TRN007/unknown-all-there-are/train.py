import torch
import torch.distributed as dist

dist.init_process_group("nccl")
n = torch.cuda.device_count()
net = torch.nn.parallel.DistributedDataParallel(net, device_ids=list(range(n)))
