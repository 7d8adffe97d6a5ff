#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=a:29400 train.py
