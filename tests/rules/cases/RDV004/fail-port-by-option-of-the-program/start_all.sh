#!/bin/bash
python train.py -r 0 -w 2 -p 29500 &
python train.py -r 1 -w 2 -p 29501 &
wait
