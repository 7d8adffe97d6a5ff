#!/bin/bash
python -m paddle.distributed.launch --server_num=1 --trainer_num=2 train.py
