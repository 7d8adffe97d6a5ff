#!/bin/bash
docker run --rm ghcr.io/lab/torch:2.4-cpu torchrun --nproc_per_node=4 train.py
