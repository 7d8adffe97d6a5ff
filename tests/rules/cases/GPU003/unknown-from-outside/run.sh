#!/bin/bash
CUDA_VISIBLE_DEVICES=$DEVICES torchrun --nproc_per_node=2 fit.py
