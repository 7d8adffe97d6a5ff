#!/bin/bash
#SBATCH --nodes=2
#SBATCH --mem=16G
export PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6170,10.0.0.2:6170
export PADDLE_TRAINERS_NUM=2
export TRAINING_ROLE=PSERVER
srun python train.py
