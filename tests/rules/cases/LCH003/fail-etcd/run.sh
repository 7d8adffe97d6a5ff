#!/bin/bash
export http_proxy=http://proxy.site:3128
torchrun --nnodes=2 --rdzv_backend=etcd-v2 --rdzv_endpoint=etcd:2379 train.py
