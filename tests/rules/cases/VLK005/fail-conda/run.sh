#!/bin/bash
conda install -y -c pytorch pytorch=2.1 torchaudio=2.0
torchrun --nnodes=1 --nproc_per_node=8 --node_rank=$NODE_RANK --master_addr=node0 --master_port=29500 train.py
