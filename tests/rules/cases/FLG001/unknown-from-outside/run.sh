#!/bin/bash
export FLAGS_fraction_of_gpu_memory_to_use=$SHARE
python -m paddle.distributed.launch --gpus=0,1 train.py
