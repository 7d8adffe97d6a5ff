#!/bin/bash
torchrun --nproc_per_node=4 train.py --model_name_or_path meta-llama/Llama-2-7b-hf --fsdp 'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer'
