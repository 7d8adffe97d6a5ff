#!/bin/bash
sudo mpirun -np 8 -mca pml ob1 $MORE python train.py
