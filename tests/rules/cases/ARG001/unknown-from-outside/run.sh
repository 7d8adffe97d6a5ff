#!/bin/bash
torchrun --nnodes=$N --nproc_per_node auto train.py
