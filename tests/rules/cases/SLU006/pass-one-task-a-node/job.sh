#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --nodes=2
#SBATCH --gpus-per-task=1
srun python train.py --deepspeed ds.json
