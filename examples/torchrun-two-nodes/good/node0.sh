#!/usr/bin/env bash
# Started by hand on the first of two machines; node1.sh runs on the other.
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0

torchrun --nnodes=2 --nproc_per_node=1 --node_rank=0 \
    --master_addr=node1 --master_port=29500 \
    train.py --batch-size 32 --epochs 2
