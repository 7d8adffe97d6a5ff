#!/bin/bash
NNODES=1
WORLD_SIZE=$((8 * NNODES))
export NCCL_DEBUG=INFO
torchrun --nproc_per_node 8 --nnodes $NNODES train.py
