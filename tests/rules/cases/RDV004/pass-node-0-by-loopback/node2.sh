#!/bin/bash
torchrun --nnodes=3 --nproc_per_node=8 --node_rank=2 --master_addr=10.0.0.5 --master_port=29500 train.py
