import torch
import torch.distributed as dist
from model import build
from peft import LoraConfig, get_peft_model
from peft.utils.other import fsdp_auto_wrap_policy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = FSDP(get_peft_model(build(), LoraConfig()), auto_wrap_policy=fsdp_auto_wrap_policy(build()))
