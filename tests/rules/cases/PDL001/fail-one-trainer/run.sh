#!/bin/bash
export PADDLE_TRAINERS_NUM=1
python train.py -c c.yml --dist
