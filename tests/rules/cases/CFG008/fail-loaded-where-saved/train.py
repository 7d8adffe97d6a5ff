import torch
import torch.distributed as dist
from model import build

dist.init_process_group("nccl")
model = build()
model.load_state_dict(torch.load("model.pt"))
