#!/bin/bash
horovodrun -np 4 python train.py
