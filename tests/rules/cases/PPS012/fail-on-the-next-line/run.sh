#!/bin/bash
TRAINING_ROLE=PSERVER python train.py &
TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 python train.py
