#!/bin/bash
script="#!/bin/bash
#SBATCH --nodes=2
srun python train.py"
echo "$script" > job.sbatch
sbatch job.sbatch
torchrun --standalone --nproc_per_node=2 train.py
