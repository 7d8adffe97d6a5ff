#!/bin/bash
deepspeed train.py --lr 1 --num_gpus 8
