#!/bin/bash
accelerate launch --config_file acc.yaml --num_machines 1 --num_processes 8 train.py
