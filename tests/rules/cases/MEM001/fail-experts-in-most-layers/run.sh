#!/bin/bash
torchrun --nproc_per_node=1 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --num-experts 32 --moe-layer-freq "([0]*2+[1]*22)"
