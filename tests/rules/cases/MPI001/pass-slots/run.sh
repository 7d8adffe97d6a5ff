#!/bin/bash
mpirun -np 8 -H a1:4,a2:4 python train.py
