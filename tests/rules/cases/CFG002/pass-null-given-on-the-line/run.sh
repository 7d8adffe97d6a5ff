#!/bin/bash
accelerate launch --config_file accelerate.yaml --num_machines 1 train.py
