#!/bin/bash
export PADDLE_TRAINERS_NUM=2
PADDLE_TRAINER_ID=0 TRAINING_ROLE=TRAINER python train.py > 0.log 2>&1 &
PADDLE_TRAINER_ID=0 TRAINING_ROLE=TRAINER python train.py > 1.log 2>&1 &
wait
