#!/bin/bash
horovodrun -np 12 -H a:4,b:4 python train.py
