#!/bin/bash
deepspeed --num_gpus=8 --master_port 29501 train.py --deepspeed
