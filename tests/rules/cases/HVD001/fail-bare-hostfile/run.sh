#!/bin/bash
horovodrun -np 8 --hostfile hosts python train.py
