#!/bin/bash
start() {
  ssh $1 torchrun --nnodes=3 --node_rank=$2 --nproc_per_node=8 --master_addr=10.0.0.1 train.py &
}
start a 0
start b 1
start c 1
wait
