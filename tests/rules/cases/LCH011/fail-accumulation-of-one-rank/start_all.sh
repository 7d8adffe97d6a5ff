#!/bin/bash
ssh a python train.py --world-size 3 --rank 0 --gradient_accumulation_steps 4 &
ssh b python train.py --gradient_accumulation_steps 2 --world-size 3 --rank 1 &
ssh c python train.py --world-size 3 --rank 2 --gradient_accumulation_steps 4 &
wait
