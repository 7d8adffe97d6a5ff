#!/bin/bash
fleetrun --master=$MASTER:8090 --nnodes=2 train.py
