#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=1:4 --master_addr=a --node_rank=$R train.py
