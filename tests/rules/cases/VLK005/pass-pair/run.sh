#!/bin/bash
pip install torch==2.3.1 torchvision==0.18.1 torchaudio==2.3.1
torchrun --nnodes=1 --nproc_per_node=8 --node_rank=$NODE_RANK --master_addr=node0 --master_port=29500 train.py
