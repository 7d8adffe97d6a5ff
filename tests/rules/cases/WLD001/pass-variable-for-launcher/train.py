import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl", world_size=int(os.environ["WORLD_SIZE"]), rank=int(os.environ["RANK"]))
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
