#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 1 run.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --deepspeed ds.json
