#!/bin/bash
deepspeed --num_gpus 8 tune.py --grad-acc-steps=8 --batch-size-per-replica=2 --deepspeed ds.json
