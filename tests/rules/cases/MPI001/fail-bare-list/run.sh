#!/bin/bash
mpirun --allow-run-as-root -np 8 -H a1,a2 python train.py
