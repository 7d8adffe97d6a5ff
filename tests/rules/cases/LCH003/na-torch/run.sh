#!/bin/bash
export http_proxy=http://proxy.site:3128
torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=a:2379 train.py
