#!/bin/bash
ssh a python train.py --world-size 3 --rank 0 &
ssh b python train.py --world-size 3 --rank 1 &
ssh c python train.py --world-size 3 --rank 1 &
wait
