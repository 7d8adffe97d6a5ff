#!/bin/bash
export PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6170,10.0.0.2:6170
export TRAINING_ROLE=TRAINER
export PADDLE_TRAINERS_NUM=2
for i in 0 1 2; do
  PADDLE_TRAINER_ID=$i python train.py
done
