#!/bin/bash
accelerate launch --config_file acc.yaml --rdzv_backend c10d train.py
