#!/bin/bash
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --signal=USR2@120
#SBATCH --time=1440
srun --unbuffered python -u -m submitit.core._submit dir
