import torch
import torch.distributed as dist


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.extra = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.body(x)


dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(Net().cuda())
