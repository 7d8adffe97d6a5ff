#!/bin/bash
SIF=/projects/images/multitorch-full.sif
srun apptainer exec $SIF bash -c 'torchrun --standalone --nproc_per_node=8 train.py'
