#!/bin/bash
deepspeed train.py --num_gpus 8
