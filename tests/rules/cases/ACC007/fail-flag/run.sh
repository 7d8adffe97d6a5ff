#!/bin/bash
accelerate launch --use_deepspeed --mixed_precision bf16 --deepspeed_config_file ds.json train.py
