#!/bin/bash
mpirun -np 2 --hostfile hostfile python train.py
