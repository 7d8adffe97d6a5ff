#!/bin/bash
sort -u "$PBS_NODEFILE" | tee nodes.txt
cp nodes.txt hostfile
mpirun -np 8 --hostfile hostfile python train.py
