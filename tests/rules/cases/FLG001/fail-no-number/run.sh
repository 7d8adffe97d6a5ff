#!/bin/bash
export FLAGS_memory_fraction_of_eager_deletion=all
python -m paddle.distributed.launch --gpus=0,1 train.py
