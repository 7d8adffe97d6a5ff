#!/bin/bash
SERVERS=10.0.0.11:6170,10.0.0.12:6170
WORKERS=127.0.0.1:6180,10.0.0.12:6180
python -m paddle.distributed.launch --servers=$SERVERS --workers=$WORKERS train.py
