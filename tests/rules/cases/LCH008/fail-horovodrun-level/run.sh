#!/bin/bash
horovodrun -np 16 -H n1:8,n2:8 --log-level WARN python train.py
