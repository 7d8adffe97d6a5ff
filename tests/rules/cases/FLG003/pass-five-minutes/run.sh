#!/bin/bash
export FLAGS_rpc_deadline=300000
python -m paddle.distributed.launch --gpus=0,1 train.py
