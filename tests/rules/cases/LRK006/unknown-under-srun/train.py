import os

import torch.distributed as dist

node_rank = int(os.environ["NODE_RANK"])
dist.init_process_group("nccl")
