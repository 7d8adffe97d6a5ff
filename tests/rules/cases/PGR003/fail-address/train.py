import os
import torch.distributed as dist

os.environ["MASTER_ADDRESS"] = "10.0.0.1"
os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl", init_method="env://")
