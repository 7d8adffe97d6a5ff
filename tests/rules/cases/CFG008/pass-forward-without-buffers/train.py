import torch
import torch.distributed as dist
from batches import batches


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, batch):
        return self.layer(batch)


dist.init_process_group("nccl")
model = Net().cuda()
ddp_model = torch.nn.parallel.DistributedDataParallel(model)
if dist.get_rank() == 0:
    ddp_model(next(batches()))
