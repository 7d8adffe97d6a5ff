#!/bin/bash
accelerate launch --config_file acc.yaml --num_machines 2 --num_processes 16 train.py
