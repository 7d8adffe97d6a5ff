#!/bin/bash
#SBATCH --gres=gpu:4
export CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS
deepspeed train.py
