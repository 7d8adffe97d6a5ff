#!/bin/bash
mpirun -np 2 -H a1,a2 python train.py
