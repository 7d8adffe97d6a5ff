#!/bin/bash
docker run --rm paddlepaddle/paddle:2.6.2 python -m paddle.distributed.launch --server_num=1 --trainer_num=2 train.py
