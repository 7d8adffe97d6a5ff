#!/bin/bash
export PADDLE_TRAINERS_NUM=2
for i in 0 1; do PADDLE_TRAINER_ID=$i TRAINING_ROLE=TRAINER python train.py & done
wait
