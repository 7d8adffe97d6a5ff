#!/bin/bash
accelerate launch --config_file acc.yaml --use_deepspeed --zero_stage 2 train.py
