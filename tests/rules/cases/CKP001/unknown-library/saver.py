import torch

def keep(state, local_rank):
    if local_rank == 0:
        torch.save(state, "checkpoint.pt")
