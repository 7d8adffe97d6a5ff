#!/bin/bash
torchrun --nnodes=2 --nproc_per_node gpu --node_rank {rank} --master_addr=node0 train.py
