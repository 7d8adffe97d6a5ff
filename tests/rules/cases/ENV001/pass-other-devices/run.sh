#!/bin/bash
export FLAGS_selected_mlus=0,1
export PADDLE_PSERVER_NUMS=2
python -m paddle.distributed.launch --devices 0,1 train.py
