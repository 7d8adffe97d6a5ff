#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:3g.20gb:2
torchrun --nproc_per_node=$N train.py
