#!/bin/bash
torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=node0:29400 run_train.py --config-file small.yaml
