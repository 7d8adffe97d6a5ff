#!/bin/bash
pip install paddlepaddle-gpu==2.6.1
python -m paddle.distributed.launch --gpus=0,1 train.py
