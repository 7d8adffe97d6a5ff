#!/bin/bash
mpirun -np 4 -H 10.0.0.1:2,10.0.0.2:2 -mca plm_rsh_args "-p 12345" python train.py
