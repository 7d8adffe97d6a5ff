#!/bin/bash
deepspeed --num_gpus=4 train.py --deepspeed ds.json --per_device_train_batch_size 4 --gradient_accumulation_steps 2
