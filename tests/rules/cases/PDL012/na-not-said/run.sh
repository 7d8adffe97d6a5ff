#!/bin/bash
fleetrun --ips=10.0.0.1,10.0.0.2 --gpus=0,1 train.py
