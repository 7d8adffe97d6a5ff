import os
import torch.distributed as dist

os.environ["MASTER_IP"] = "10.0.0.1"
os.environ["MASTER_ADDR"] = os.environ["MASTER_IP"]
dist.init_process_group("nccl", init_method="env://")
