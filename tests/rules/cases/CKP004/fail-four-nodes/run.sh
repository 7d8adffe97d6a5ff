#!/bin/bash
torchrun --nnodes=4 --node_rank=$1 --nproc_per_node=8 --master_addr=10.0.0.1 --master_port=29400 train.py
