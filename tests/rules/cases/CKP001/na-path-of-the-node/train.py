import os
import torch

if int(os.environ["LOCAL_RANK"]) == 0:
    torch.save(state, f"checkpoint-{node_rank}.pt")
