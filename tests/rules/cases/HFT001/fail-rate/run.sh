#!/bin/bash
deepspeed --num_gpus 8 train.py --learning_rate 5e-5 --deepspeed ds.json
