#!/bin/bash
ssh 10.2.0.1 "cd /data/job && python -m paddle.distributed.launch --ips=10.2.0.1,10.2.0.2 --gpus=0,1,2,3,4,5,6,7 train.py --batch_size 64" &
read SMALL < sizes
ssh 10.2.0.2 "cd /data/job && python -m paddle.distributed.launch --ips=10.2.0.1,10.2.0.2 --gpus=0,1,2,3,4,5,6,7 train.py --batch_size $SMALL" &
wait
