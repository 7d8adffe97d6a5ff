#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:nvidia_a100_3g.20gb:2
torchrun --nproc_per_node=2 train.py
