#!/bin/bash
torchrun --nproc_per_node=$GPUS --nodes_rank=$RANK --nnodes=2 --master_addr=10.0.0.1 train.py
