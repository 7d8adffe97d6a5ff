#!/bin/bash
HOSTS=3
for i in 0 1 3; do
  torchrun --nnodes $HOSTS --node_rank $i --nproc_per_node=8 --master_addr=node0 --master_port=29500 train.py &
done
