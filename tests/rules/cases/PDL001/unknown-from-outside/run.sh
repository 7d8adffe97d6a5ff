#!/bin/bash
export PADDLE_TRAINERS_NUM=$N
python train.py --use_dist=1
