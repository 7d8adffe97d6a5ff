#!/bin/bash
accelerate launch --config_file acc.yaml --mixed_precision no train.py
