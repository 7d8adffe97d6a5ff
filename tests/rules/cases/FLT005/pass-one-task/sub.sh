#!/bin/bash
#SBATCH --ntasks-per-node=1
#SBATCH --nodes=1
#SBATCH --signal=USR2@120
srun --unbuffered python -u -m submitit.core._submit dir
