#!/bin/bash
torchrun --nnodes=2 --node_rank=0 --nproc_per_node=$GPUS --master_addr=trainer-a --master_port=29511 fit.py
