#!/bin/bash
HOST=127.0.0.1
torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$HOST:29500 train.py
