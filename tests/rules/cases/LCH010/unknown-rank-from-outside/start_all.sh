#!/bin/bash
ssh a python train.py --world-size 2 --rank 0 &
ssh b python train.py --world-size 2 --rank $ME &
wait
