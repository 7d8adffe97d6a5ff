#!/bin/bash
torchrun --nnodes=1 --nproc_per_node=8 pretrain_gpt.py --num-layers 24 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16
