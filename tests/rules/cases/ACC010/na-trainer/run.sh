#!/bin/bash
accelerate launch --num_machines 1 --num_processes 8 train.py --deepspeed ds.json
