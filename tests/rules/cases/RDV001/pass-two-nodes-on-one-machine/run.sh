#!/bin/bash
torchrun --nnodes 2 --node-rank 0 --nproc-per-node 4 train.py &
torchrun --nnodes 2 --node-rank 1 --nproc-per-node 4 train.py &
wait
