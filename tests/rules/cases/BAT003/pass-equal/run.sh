#!/bin/bash
deepspeed --num_gpus=4 train.py --deepspeed ds.json --gradient_accumulation_steps 2
