#!/bin/bash
python -m paddle.distributed.launch --nnodes=2 --nproc_per_node=8 --master=10.0.0.1:6170 train.py
