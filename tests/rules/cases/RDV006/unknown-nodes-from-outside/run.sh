#!/bin/bash
torchrun --standalone --nnodes=$N --nproc_per_node=8 train.py
