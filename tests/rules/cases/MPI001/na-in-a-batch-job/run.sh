#!/bin/bash
#SBATCH -N 2
mpirun -np 8 -H a1,a2 python train.py
