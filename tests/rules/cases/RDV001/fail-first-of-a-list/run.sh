#!/bin/bash
python -m paddle.distributed.launch --ips=127.0.0.1,10.0.0.7 --gpus=0,1 train.py
