#!/bin/bash
horovodrun -np 4 --min-np 2 -H a:4 python train.py
