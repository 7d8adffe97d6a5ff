import torch
import torch.distributed as dist

model = torch.nn.Linear(2, 2)
if dist.get_rank() == 0:
    print(model)
