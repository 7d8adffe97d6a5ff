#!/bin/bash
torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --master_addr=node0 train.py
