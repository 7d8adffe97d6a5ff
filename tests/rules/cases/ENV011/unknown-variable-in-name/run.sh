#!/bin/bash
export NCCL_${WHAT}-DISABLE=1
torchrun --nproc_per_node 2 train.py
