import torch
import torch.distributed as dist

def save(model):
    if dist.get_rank() != 0:
        return
    torch.save(model.state_dict(), "model.pt")

dist.init_process_group("nccl")
save(model)
