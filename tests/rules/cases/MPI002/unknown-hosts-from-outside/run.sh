#!/bin/bash
mpirun -np 8 -H "$HOSTS" python train.py
