import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
folder = "out/step1"
if rank == 0:
    os.makedirs(folder, exist_ok=True)
torch.save({"step": 1}, os.path.join(folder, f"optim_rank{rank}.pt"))
