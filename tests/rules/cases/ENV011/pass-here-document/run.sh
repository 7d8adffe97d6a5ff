#!/bin/bash
export A=1
cat > env.txt <<EOF
export NCCL_IB-DISABLE=1
EOF
torchrun --nproc_per_node 2 train.py
