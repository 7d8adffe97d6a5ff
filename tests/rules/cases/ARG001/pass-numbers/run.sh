#!/bin/bash
torchrun --nnodes=1:4 --nproc_per_node 8 --max_restarts=3 --rdzv_backend c10d --rdzv_endpoint node0:29400 train.py
