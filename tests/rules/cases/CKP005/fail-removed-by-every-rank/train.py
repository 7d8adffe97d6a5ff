import os
import shutil

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if os.path.exists("out"):
    shutil.rmtree("out")
