#!/bin/bash
horovodrun -np 8 -H server1,server2 python train.py
