#!/bin/bash
docker run --rm paddlepaddle/paddle:3.2.0-gpu-cuda12.6 python -m paddle.distributed.launch --server_num=1 --trainer_num=2 train.py
