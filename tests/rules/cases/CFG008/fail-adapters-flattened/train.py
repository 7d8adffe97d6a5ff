import torch
import torch.distributed as dist
from model import build
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = FSDP(get_peft_model(build(), LoraConfig()))
