#!/bin/bash
mpirun -np 4 -H a:2,b:2 --mca pml ucx python train.py
