#!/bin/bash
export NCCL_SOCKET_IFNAME=eth0
mpirun --allow-run-as-root -np 8 -H a1:4,a2:4 python train.py
