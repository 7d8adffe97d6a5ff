#!/bin/bash
fleetrun --master=10.0.0.1:8090 --nnodes=2 train.py
