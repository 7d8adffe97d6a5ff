#!/bin/bash
TRAINING_ROLE=PSERVER PADDLE_PORT=6170 python train.py
