#!/bin/bash
accelerate launch --config_file acc.yaml --num_machines $N train.py
