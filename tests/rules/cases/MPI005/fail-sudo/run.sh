#!/bin/bash
sudo mpirun -np 8 -mca pml ob1 python train.py
