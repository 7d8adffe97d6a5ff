import torch
import torch.distributed as dist
from datasets import load_dataset
from torch.utils.data import DataLoader

dist.init_process_group("nccl")
data = load_dataset("c4", streaming=True).with_format("torch")
loader = DataLoader(data, batch_size=8, shuffle=True)
