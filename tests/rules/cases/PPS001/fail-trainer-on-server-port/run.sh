#!/bin/bash
python -m paddle.distributed.launch --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.1:6170,10.0.0.2:6172 train.py
