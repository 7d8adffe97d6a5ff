#!/bin/bash
export FLAGS_fraction_of_gpu_memory_to_use=0.4
export FLAGS_allocator_strategy=$STRATEGY
python -m paddle.distributed.launch --gpus=0,1 train.py
