#!/bin/bash
torchrun --nnodse=1 --nproc_per_node=8 train.py
