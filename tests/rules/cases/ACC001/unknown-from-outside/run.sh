#!/bin/bash
accelerate launch --config_file acc.yaml --num_processes=$WORLD train.py
