import os
import torch

local_rank = int(os.environ["LOCAL_RANK"])
if local_rank == 0:
    torch.save(state, "output/checkpoint.pt")
