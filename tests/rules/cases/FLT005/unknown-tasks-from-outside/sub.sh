#!/bin/bash
#SBATCH --ntasks-per-node={{ tasks }}
#SBATCH --signal=USR2@120
srun --unbuffered python -u -m submitit.core._submit dir
