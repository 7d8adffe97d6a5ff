#!/bin/bash
export PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6170,10.0.0.2:6170
export TRAINING_ROLE=SERVER
python train.py
