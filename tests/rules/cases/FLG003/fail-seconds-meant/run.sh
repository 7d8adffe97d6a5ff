#!/bin/bash
export FLAGS_rpc_deadline=300
python -m paddle.distributed.launch --gpus=0,1 train.py
