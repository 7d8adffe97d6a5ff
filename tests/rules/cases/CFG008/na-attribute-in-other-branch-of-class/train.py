import os

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")
from net import Net



class Runner:
    def __init__(self, distributed):
        self.distributed = distributed
        self.model = Net().cuda()
        if self.distributed:
            self.model = DDP(self.model, device_ids=[local_rank])

    def freeze(self):
        if self.distributed:
            self.model.module.freeze()
        else:
            self.model.freeze()

    def clip(self):
        if type(self.model) is DDP:
            return self.model.module.clip()
        return self.model.clip()
