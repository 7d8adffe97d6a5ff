import os
import torch.distributed as dist

if not launched():
    os.environ["MASTER_ADDRESS"] = "10.0.0.1"
dist.init_process_group("nccl", init_method="env://")
