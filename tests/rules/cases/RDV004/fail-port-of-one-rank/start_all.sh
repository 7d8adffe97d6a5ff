#!/bin/bash
export MASTER_ADDR=10.0.0.4 WORLD_SIZE=2
RANK=0 MASTER_PORT=29500 python train.py &
RANK=1 MASTER_PORT=29501 python train.py &
wait
