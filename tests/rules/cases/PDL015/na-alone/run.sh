#!/bin/bash
fleetrun --gpus=0,1 train.py
