#!/bin/bash
torchrun --nproc=8 --nnode=1 --standalone train.py --whatever
