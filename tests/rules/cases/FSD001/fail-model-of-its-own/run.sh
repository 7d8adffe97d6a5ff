#!/bin/bash
accelerate launch --config_file acc.yaml train.py --model_name_or_path acme/frontier-7b --trust_remote_code True
