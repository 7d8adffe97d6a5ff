#!/bin/bash
TRAINING_ROLE=PSERVER python train.py & sleep 5
TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 python train.py
