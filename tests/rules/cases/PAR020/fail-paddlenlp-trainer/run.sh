#!/bin/bash
python -m paddle.distributed.launch --nnodes 2 --master 10.0.0.1:8090 --gpus 0,1,2,3,4,5,6,7 run_pretrain.py pretrain.json
