#!/bin/bash
mpirun -np 4 -H 10.0.0.1:2,10.0.0.2:2 python train.py
