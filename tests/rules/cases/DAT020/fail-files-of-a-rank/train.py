import glob

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
files = sorted(glob.glob("data/*.pt"))[dist.get_rank() :: dist.get_world_size()]
data = TensorDataset(torch.cat([torch.load(path, map_location="cpu") for path in files]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
for (batch,) in DataLoader(data, batch_size=32):
    model(batch).mean().backward()
