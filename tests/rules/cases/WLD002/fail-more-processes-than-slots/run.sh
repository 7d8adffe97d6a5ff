#!/bin/bash
mpirun -np 4 --hostfile hostfile python train.py
