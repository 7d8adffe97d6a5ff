#!/bin/bash
accelerate launch --use_fsdp --num_machines 1 --num_processes 8 train.py
