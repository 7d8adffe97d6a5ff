#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=a:29400 --master_addr=a --master_port=29400 train.py
