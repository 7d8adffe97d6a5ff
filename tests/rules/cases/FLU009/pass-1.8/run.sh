#!/bin/bash
pip install paddlepaddle-gpu==1.8.5
python -m paddle.distributed.launch --selected_gpus=0,1 train.py
