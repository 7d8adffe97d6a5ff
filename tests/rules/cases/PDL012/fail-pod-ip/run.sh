#!/bin/bash
export POD_IP=192.168.0.9
fleetrun --ips=10.0.0.1,10.0.0.2 --gpus=0,1 train.py
