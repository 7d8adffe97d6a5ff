#!/bin/bash
torchrun --nproc-per-node 8 train.py --deepspeed ds.json --per_device_train_batch_size 4
