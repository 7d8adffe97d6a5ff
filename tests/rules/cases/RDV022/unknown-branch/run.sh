#!/bin/bash
if [ -n "$BOTH" ]; then N=2; else N=4; fi
torchrun --nnodes=$N --nproc_per_node=8 --node_rank=$RANK --master_addr=trainer-a --master_port=29511 fit.py
