#!/bin/bash
horovodrun -np 4 --min-np 2 --mpi --host-discovery-script ./d.sh python train.py
