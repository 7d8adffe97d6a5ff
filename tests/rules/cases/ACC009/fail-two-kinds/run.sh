#!/bin/bash
accelerate launch --multi_gpu --use_deepspeed --num_machines 1 --num_processes 8 train.py
