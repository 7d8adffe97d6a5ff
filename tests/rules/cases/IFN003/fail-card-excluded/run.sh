#!/bin/bash
export NCCL_SOCKET_IFNAME=^enp129s0f0
torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --master_addr=10.0.0.1 train.py
