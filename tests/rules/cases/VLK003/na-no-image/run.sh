#!/bin/bash
pip install torch==2.1.0+cu118
torchrun --nnodes=4 --nproc_per_node=8 --node_rank=$NODE_RANK --master_addr=node0 --master_port=29500 train.py
