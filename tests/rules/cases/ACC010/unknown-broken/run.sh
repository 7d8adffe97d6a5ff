#!/bin/bash
accelerate launch --use_deepspeed --num_machines 1 --num_processes 8 --deepspeed_config_file ds.json train.py
