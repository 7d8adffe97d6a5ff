#!/bin/bash
export CUDA_VISIBLE_DEVICES=4,5,6,7
torchrun --nproc_per_node=4 train.py
