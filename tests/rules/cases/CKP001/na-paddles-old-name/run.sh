#!/bin/bash
python -m paddle.distributed.launch --nnodes 2 --master 10.0.0.1:8090 train.py
