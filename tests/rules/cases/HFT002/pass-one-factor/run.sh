#!/bin/bash
deepspeed --num_gpus 8 tune.py --gradient_accumulation_steps 4 --deepspeed ds.json
