#!/bin/bash
torchrun --nproc_per_node=$GPUS train.py
