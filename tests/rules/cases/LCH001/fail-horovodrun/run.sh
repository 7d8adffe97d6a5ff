#!/bin/bash
horovodrun --num_proc 16 -H n1:8,n2:8 python train.py
