#!/bin/bash
fleetrun --master=169.254.60.61:8090 --nnodes=2 train.py
