#!/bin/bash
python -m pip install -r requirements.txt
torchrun --nnodes=2 --nproc_per_node=8 --node_rank=$NODE_RANK --master_addr=node0 --master_port=29500 train.py
