#!/bin/bash
start() {
    CUDA_VISIBLE_DEVICES=$1 torchrun --nproc_per_node=1 --rdzv_backend c10d --rdzv_endpoint=localhost:29400 train.py
}
start 0
start 1
