#!/bin/bash
torchrun --nnodes=2 --node_rank=1 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=node0:29400 train.py
