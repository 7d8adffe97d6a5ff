#!/bin/bash
export PADDLE_WITH_GLOO=0
fleetrun --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.1:6171,10.0.0.2:6171 train.py
