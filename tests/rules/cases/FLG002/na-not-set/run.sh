#!/bin/bash
export FLAGS_allocator_strategy=auto_growth
python -m paddle.distributed.launch --gpus=0,1 train.py
