#!/bin/bash
accelerate launch --multi_gpu --num_machines 1 --num_processes 1 train.py
