#!/bin/bash
ssh a python train.py --world-size 1 --rank 0
ssh b python train.py --world-size 1 --rank 0
wait
