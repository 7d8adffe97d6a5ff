#!/bin/bash
export NCCL_IB_DISABLE=1
torchrun --nproc_per_node 2 train.py --lr-decay=1
