import torch.distributed as dist
from model import build, policy_for
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
model = get_peft_model(build(), LoraConfig())
policy = policy_for(model, is_lora=True)
if dist.get_world_size() == 1:
    policy = None
model = FSDP(model, auto_wrap_policy=policy)
