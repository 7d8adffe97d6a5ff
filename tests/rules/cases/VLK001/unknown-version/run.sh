#!/bin/bash
pip install torch==$TORCH
torchrun --nnodes=4 --nproc_per_node=8 --node_rank=$NODE_RANK --master_addr=node0 --master_port=29500 train.py
