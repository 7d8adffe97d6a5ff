#!/bin/bash
export FLAGS_fraction_of_gpu_memory_to_use=92
python -m paddle.distributed.launch --gpus=0,1 train.py
