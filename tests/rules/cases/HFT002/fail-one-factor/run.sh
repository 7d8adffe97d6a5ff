#!/bin/bash
deepspeed --num_gpus 8 tune.py --per_device_train_batch_size 4 --deepspeed ds.json
