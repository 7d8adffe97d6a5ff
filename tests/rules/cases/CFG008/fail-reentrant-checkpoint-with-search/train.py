import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def forward(self, x):
        return checkpoint(self.block, x)


dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
