#!/bin/bash
torchrun --standalone --nnodes=1 --nproc_per_node=1 train.py --local_rank 0
