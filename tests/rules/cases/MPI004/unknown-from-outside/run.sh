#!/bin/bash
mpirun --allow-run-as-root -np 8 -H a:4,b:4 -mca btl_tcp_if_include $IF python train.py
