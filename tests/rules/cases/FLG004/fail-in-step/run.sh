#!/bin/bash
export FLAGS_communicator_send_queue_size=20
PADDLE_TRAINER_ID=0 TRAINING_ROLE=TRAINER python train.py
