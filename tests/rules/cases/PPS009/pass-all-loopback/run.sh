#!/bin/bash
python -m paddle.distributed.launch --servers=127.0.0.1:6170,127.0.0.1:6171 --workers=127.0.0.1:6172,127.0.0.1:6173 train.py
