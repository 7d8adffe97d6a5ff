import torch.distributed as dist
from model import build, policy
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
actor = get_peft_model(build(), LoraConfig())
actor = FSDP(actor, auto_wrap_policy=policy, use_orig_params=True)
critic = build()
critic = FSDP(critic, auto_wrap_policy=policy)
