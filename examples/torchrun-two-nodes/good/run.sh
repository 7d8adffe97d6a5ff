#!/usr/bin/env bash
# Started by hand on each of two machines:  NODE_RANK=0 bash run.sh  on the first, NODE_RANK=1 on the second.
export NCCL_SOCKET_IFNAME=eth0
export GLOO_SOCKET_IFNAME=eth0

torchrun --nnodes=2 --nproc_per_node=1 --node_rank="${NODE_RANK:?0 on the first machine, 1 on the second}" \
    --master_addr=node1 --master_port=29500 \
    train.py --batch-size 32 --epochs 2
