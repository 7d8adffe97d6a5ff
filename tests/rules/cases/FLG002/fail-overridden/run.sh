#!/bin/bash
export FLAGS_fraction_of_gpu_memory_to_use=0.4
export FLAGS_initial_gpu_memory_in_mb=8000
python -m paddle.distributed.launch --gpus=0,1 train.py
