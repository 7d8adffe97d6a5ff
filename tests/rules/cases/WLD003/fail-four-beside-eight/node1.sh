#!/bin/bash
torchrun --nnodes=2 --node_rank=1 --nproc_per_node=4 --master_addr=trainer-a --master_port=29511 fit.py
