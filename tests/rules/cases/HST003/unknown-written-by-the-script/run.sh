#!/bin/bash
#SBATCH --nodes=2
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  echo "$host slots=8"
done > "$PWD/hosts.txt"
deepspeed --hostfile="$PWD/hosts.txt" train.py
