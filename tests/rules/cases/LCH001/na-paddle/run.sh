#!/bin/bash
python -m paddle.distributed.launch --whatever 1 train.py
