#!/bin/bash
python -m paddle.distributed.launch --devices 0,1,2,3,4,5,6,7 tools/train.py -c gpt.yaml -o Distributed.dp_degree=16
