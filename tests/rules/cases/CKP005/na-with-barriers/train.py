import os
import shutil

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
folder, path = "out/step1", "start.pt"
if rank == 0:
    shutil.rmtree("out", ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
dist.barrier()
torch.save({"step": 1}, os.path.join(folder, f"optim_rank{rank}.pt"))
weights = torch.load(path)
dist.barrier()
if rank == 0:
    os.remove(path)
