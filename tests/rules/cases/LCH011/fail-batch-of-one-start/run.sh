#!/bin/bash
torchrun --nnodes=3 --node_rank=$1 --nproc_per_node=8 --master_addr=${2:-10.0.0.1} --master_port=${3:-29500} \
  train.py --batch-size ${4:-8}
