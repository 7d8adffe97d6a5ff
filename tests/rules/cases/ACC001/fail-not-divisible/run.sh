#!/bin/bash
accelerate launch --config_file acc.yaml --num_processes=15 train.py
