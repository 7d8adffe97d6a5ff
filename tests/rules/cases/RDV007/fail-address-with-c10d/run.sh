#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=2 --rdzv_backend=c10d --master_addr=$MASTER_ADDR train.py
