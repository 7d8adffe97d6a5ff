import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.save(model.state_dict(), "model.pt")
