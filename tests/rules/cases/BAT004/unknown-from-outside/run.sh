#!/bin/bash
torchrun --nnodes=1 --nproc_per_node=8 pretrain_gpt.py --num-layers 24 --micro-batch-size 4 --global-batch-size $BATCH
