#!/bin/bash
export PADDLE_TRAINERS_NUM=2
export PADDLE_TRAINER_ID=0
python train.py -c c.yml --dist
