#!/bin/bash
accelerate launch --config_file acc.yaml train.py --max_grad_norm 1.0
