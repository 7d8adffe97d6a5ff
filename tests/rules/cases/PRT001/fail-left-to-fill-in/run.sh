#!/bin/bash
torchrun --nnodes=2 --master_addr=node0 --master_port=master_port --nproc_per_node=8 train.py
