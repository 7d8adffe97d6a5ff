import os

import torch.distributed as dist
from ranks import start

os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
rank = start()
dist.init_process_group("nccl")
