#!/bin/bash
mpirun -np 2 -H a:2 python train.py
