#!/bin/bash
horovodrun -np 8 -H $HOSTS python train.py
