#!/bin/bash
horovodrun -np 8 -H server1:4,server2:4 python train.py
