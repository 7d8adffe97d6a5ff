import os

import torch.distributed as dist

os.environ["MASTER_PORT"] = os.environ.get("MASTER_PORT", "")
dist.init_process_group("gloo")
