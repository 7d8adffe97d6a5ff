#!/bin/bash
TRAINING_ROLE=PSERVER python train.py &
sleep 5
TRAINING_ROLE=TRAINER python train.py &
