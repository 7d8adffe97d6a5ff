import torch.distributed as dist
import webdataset as wds
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
net = DDP(net, device_ids=[local_rank])
data = wds.WebDataset("shards-{0..99}.tar").decode("pil")
