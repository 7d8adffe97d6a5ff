#!/bin/bash
export FLAGS_eager_delete_tensor_gb=0
python -m paddle.distributed.launch --gpus=0,1 train.py
