import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

mesh = DeviceMesh("cuda", list(range(4)))
print(dist.get_rank())
