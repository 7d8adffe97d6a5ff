import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Checkpoints:
    def save(self, model, optimizer):
        state = FSDP.sharded_optim_state_dict(model, optimizer)
        self.write(state)
        if dist.get_rank() == 0:
            torch.save({"step": 1}, "metadata.pth")
