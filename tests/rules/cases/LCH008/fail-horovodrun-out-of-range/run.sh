#!/bin/bash
horovodrun -np 16 -H n1:8,n2:8 --cache-capacity -1 python train.py
