#!/bin/bash
PORT=295000
export MASTER_PORT=$PORT
torchrun --nnodes=1 --nproc_per_node=2 --master_port ${MASTER_PORT:-29500} train.py
