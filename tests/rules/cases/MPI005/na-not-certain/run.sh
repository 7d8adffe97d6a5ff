#!/bin/bash
sudo mpirun -np 8 python train.py
