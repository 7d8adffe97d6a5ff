#!/bin/bash
torchrun --nnodes=2 --node_rank=0 --master_addr=node0 --master_port=6000 train.py
