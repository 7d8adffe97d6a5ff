#!/bin/bash
mpirun -np 1 -x A=1 python train.py : -np 2 -x A=2 python train.py --x
