#!/bin/bash
accelerate launch --config_file acc.yaml train.py
accelerate launch --config_file other.yaml train.py
