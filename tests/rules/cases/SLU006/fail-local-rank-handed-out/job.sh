#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --gpu-bind=single:1
srun bash -c 'LOCAL_RANK=$SLURM_LOCALID python train.py'
