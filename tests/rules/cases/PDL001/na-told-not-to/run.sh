#!/bin/bash
export PADDLE_TRAINERS_NUM=1
python train.py --distributed False
