#!/bin/bash
CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node=1 --rdzv_backend c10d --rdzv_endpoint=localhost:0 a.py &
CUDA_VISIBLE_DEVICES=1 torchrun --nproc_per_node=1 --rdzv_backend c10d --rdzv_endpoint=localhost:0 a.py &
wait
