#!/bin/bash
python -m paddle.distributed.launch --nnodes=1 --nproc_per_node=4 train.py
