#!/usr/bin/env bash
# Two nodes of four GPUs each, started over ssh by the deepspeed launcher.
set -e

HOSTFILE=hostfile
MASTER_PORT=${MASTER_PORT:-29501}

export NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAME=^lo,docker

deepspeed --hostfile "$HOSTFILE" \
    --num_nodes 2 \
    --num_gpus 4 \
    --master_addr node1 \
    --master_port 29501 \
    train.py \
    --deepspeed --deepspeed_config ds_config.json \
    --epochs 3
