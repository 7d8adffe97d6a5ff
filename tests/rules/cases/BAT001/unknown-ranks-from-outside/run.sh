#!/bin/bash
deepspeed --num_gpus=$GPUS train.py --deepspeed_config ds.json
