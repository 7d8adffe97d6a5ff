#!/bin/bash
GPUS=8
MB=3
deepspeed --num_gpus=$GPUS train.py --deepspeed ds.json --per_device_train_batch_size $MB --gradient_accumulation_steps 2
