#!/bin/bash
mpiexec.hydra -n 8 -ppn 4 -hosts a1,a2 python train.py
