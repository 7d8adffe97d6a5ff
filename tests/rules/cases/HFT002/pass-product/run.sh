#!/bin/bash
deepspeed --num_gpus 8 tune.py --grad_accum_steps 1 --batch_size_per_gpu 1 --deepspeed ds.json
