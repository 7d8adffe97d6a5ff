#!/bin/bash
mpirun -np 8 --oversubscribe -H a1,a2 python train.py
