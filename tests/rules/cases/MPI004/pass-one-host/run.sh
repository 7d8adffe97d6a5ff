#!/bin/bash
mpirun --allow-run-as-root -np 8 -H a:8 -mca btl_tcp_if_include lo python train.py
