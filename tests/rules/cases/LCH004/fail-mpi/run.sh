#!/bin/bash
mpirun -np 8 -H a:4,b:4 -x CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK python train.py
