#!/bin/bash
export OMPI_MCA_btl_tcp_if_exclude=lo,docker0
mpirun -np 4 -H 10.0.0.1:2,10.0.0.2:2 python train.py
