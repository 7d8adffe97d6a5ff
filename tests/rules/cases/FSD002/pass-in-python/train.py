import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import XLMRobertaModel
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLayer

torch.distributed.init_process_group("nccl")
model = XLMRobertaModel.from_pretrained("FacebookAI/xlm-roberta-base")
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={XLMRobertaLayer})
model = FSDP(model, auto_wrap_policy=policy)
