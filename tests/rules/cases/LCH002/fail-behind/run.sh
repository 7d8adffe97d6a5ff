#!/bin/bash
torchrun train.py --nproc_per_node 8
