#!/bin/bash
python -m paddle.distributed.launch --servers=10.0.0.1:6170 --trainers=10.0.0.1:6171,10.0.0.2:6171 train.py
