#!/bin/bash
torchrun --nnodes=2 --nproc_per_node=8 --master_addr=trainer-a --master_port=29511 fit.py
