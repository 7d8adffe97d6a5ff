#!/bin/bash
python -m paddle.distributed.launch --servers=$SERVERS --workers=10.0.0.1:6172,10.0.0.2:6172 train.py
