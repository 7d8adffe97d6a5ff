#!/bin/bash
export NCCL_SOCKET_IFNAME=lo
torchrun --nnodes=1 --nproc_per_node=8 train.py
