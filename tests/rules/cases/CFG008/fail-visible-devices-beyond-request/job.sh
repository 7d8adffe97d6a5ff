#!/bin/bash
#SBATCH --gres=gpu:2
export CUDA_VISIBLE_DEVICES=0,3
torchrun --nproc_per_node=2 train.py
