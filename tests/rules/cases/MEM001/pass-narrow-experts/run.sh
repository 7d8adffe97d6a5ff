#!/bin/bash
torchrun --nproc_per_node=1 pretrain_gpt.py --num-layers 4 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --swiglu --num-experts 128 --moe-ffn-hidden-size 768
