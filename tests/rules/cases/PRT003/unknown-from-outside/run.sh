#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=2 --node_rank=$R --master_addr=a --master_port=$PORT train.py
